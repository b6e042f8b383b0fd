"""Names of the environment variables that several rooms read or set.

docs/reference/environment.md lists their values.
"""

CIRCUITS_VARIABLE = "TOPOOPT_CIRCUITS"  # path of the socket of the service that moves circuits
CONNECTIONS_VARIABLE = "TOPOOPT_CONNECTIONS"
CONTROLLER_VARIABLE = "TOPOOPT_CONTROLLER"
ENCRYPT_VARIABLE = "TOPOOPT_ENCRYPT"
LINK_THREADS_VARIABLE = "TOPOOPT_LINK_THREADS"
REDUCE_THREADS_VARIABLE = "TOPOOPT_REDUCE_THREADS"
SPARE_VARIABLE = "TOPOOPT_SPARE_AFTER_S"  # seconds until a lost link moves to spare ports
TRANSPORT_VARIABLE = "TOPOOPT_TRANSPORT"
ZERO_COPY_VARIABLE = "TOPOOPT_ZERO_COPY"
