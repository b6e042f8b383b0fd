"""Files that keep the settings of cable ports over a restart of their hosts."""
