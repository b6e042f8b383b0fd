"""Every environment variable of torch_topoopt: its name, its type and its meaning.

docs/reference/environment.md explains them, with their defaults.
"""

# Documents and folders of a job
PLAN_VARIABLE = "TOPOOPT_PLAN"  # file: the plan of the job
WIRING_VARIABLE = "TOPOOPT_WIRING"  # file: the addresses of the plan's links
RUN_DIR_VARIABLE = "TOPOOPT_RUN_DIR"  # folder: byte counters and flight recorders
METRICS_VARIABLE = "TOPOOPT_METRICS"  # file: events of torch_topoopt.log(...)
RANK_ERRORS_VARIABLE = "TOPOOPT_RANK_ERRORS"  # folder: tracebacks of all ranks
STARTED_VARIABLE = "TOPOOPT_STARTED"  # seconds: when the job started, since the epoch
TIMELINE_VARIABLE = "TOPOOPT_TIMELINE"  # range: iterations whose messages are recorded
TRACE_VARIABLE = "TOPOOPT_TRACE"  # flag: the script is traced, not run

# Networks and links
INTERFACES_VARIABLE = "TOPOOPT_INTERFACES"  # list: prefixes of interfaces to use without a plan
SHARED_MEMORY_VARIABLE = "TOPOOPT_SHARED_MEMORY"  # flag: memory that ranks of a machine share
SECRET_VARIABLE = "TOPOOPT_SECRET_FILE"  # file: the secret of the job
ENCRYPT_VARIABLE = "TOPOOPT_ENCRYPT"  # flag: TLS on links between servers
TRANSPORT_VARIABLE = "TOPOOPT_TRANSPORT"  # name: tcp, or a provider of libfabric
CONNECTIONS_VARIABLE = "TOPOOPT_CONNECTIONS"  # count: TCP connections of every planned link
LINK_THREADS_VARIABLE = "TOPOOPT_LINK_THREADS"  # flag: threads of their own for fast connections
REDUCE_THREADS_VARIABLE = "TOPOOPT_REDUCE_THREADS"  # count: threads that add up received chunks
ZERO_COPY_VARIABLE = "TOPOOPT_ZERO_COPY"  # 0, 1 or always: sends without a copy
SILENCE_LIMIT_VARIABLE = "TOPOOPT_SILENCE_LIMIT_S"  # seconds: until a silent rank ends the job
SYSFS_VARIABLE = "TOPOOPT_SYSFS"  # folder: the kernel's tree of devices
CIRCUITS_VARIABLE = "TOPOOPT_CIRCUITS"  # path: socket of the service that moves circuits

# Collectives
ALGORITHM_VARIABLE = "TOPOOPT_ALGORITHM"  # name: the algorithm of collectives
COST_MODEL_VARIABLE = "TOPOOPT_COST_MODEL"  # kept or measure: where message costs come from
DEVICE_MEMORY_VARIABLE = "TOPOOPT_DEVICE_MEMORY"  # auto or copy: tensors on a device
LOG_VARIABLE = "TOPOOPT_LOG"  # info or debug: what a rank prints
COMPARE_PLACES_VARIABLE = "TOPOOPT_COMPARE_PLACES"  # flag: compare where ranks call collectives
TAKE_OVER_VARIABLE = "TOPOOPT_TAKE_OVER"  # list: backends that this one replaces

# The route controller
CONTROLLER_VARIABLE = "TOPOOPT_CONTROLLER"  # URL: the controller of routes
CONTROLLER_TOKEN_VARIABLE = "TOPOOPT_CONTROLLER_TOKEN_FILE"  # file: its token
CONTROLLER_HOST_VARIABLE = "TOPOOPT_CONTROLLER_HOST"  # name: this host in the network file
CONTROLLER_THRESHOLD_VARIABLE = "TOPOOPT_CONTROLLER_THRESHOLD"  # bytes: smaller flows keep ECMP

# Stock NCCL
NCCL_WIRING_VARIABLE = "TOPOOPT_NCCL_WIRING"  # file: cables, routes and secrets of the job
NCCL_RANK_VARIABLE = "TOPOOPT_NCCL_RANK"  # number: the rank of the process
NCCL_CONNECT_LIMIT_VARIABLE = "TOPOOPT_NCCL_CONNECT_LIMIT_S"  # seconds: until a connect fails
SERVER_GPUS_VARIABLE = "TOPOOPT_SERVER_GPUS"  # list: the GPU of every emulated server

# The launcher, and a shared cluster
STALL_WARNING_VARIABLE = "TOPOOPT_STALL_WARNING_S"  # seconds: without progress, until it warns
DISCOVER_TOKEN_VARIABLE = "TOPOOPT_DISCOVER_TOKEN"  # text: the token of discover's agents
CLUSTER_VARIABLE = "TOPOOPT_CLUSTER"  # file: the cluster of `topoopt cluster`
JOB_VARIABLE = "TOPOOPT_JOB"  # text: marks the processes of a queued job
JOB_PLAN_VARIABLE = "TOPOOPT_JOB_PLAN"  # file: the plan of a queued job
JOB_CLUSTER_VARIABLE = "TOPOOPT_JOB_CLUSTER"  # file: the servers of a queued job
JOB_SERVERS_VARIABLE = "TOPOOPT_JOB_SERVERS"  # list: their names
