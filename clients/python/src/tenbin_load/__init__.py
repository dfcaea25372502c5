"""Load reports and workers of MQTT share groups.

`LoadReporter` reports the load of a paho-mqtt client, and `Worker` is a complete worker with such a client.
`tenbin_load.aiomqtt` has a `LoadReporter` for aiomqtt.
"""

from ._load import Processing, Report
from ._paho import LoadReporter, connect_properties
from ._worker import Worker

__all__ = ["LoadReporter", "Processing", "Report", "Worker", "connect_properties"]
