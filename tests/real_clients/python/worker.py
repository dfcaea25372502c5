"""A worker of a share group with Eclipse Paho's Python client, version 2: worker.py HOST PORT CLIENT_ID FACTOR STYLE.

STYLE is "loop-forever" or "loop-start". With loop_start(), on_message runs in the library's thread, which reads the next
message before it writes an acknowledgement. With loop_forever() the acknowledgement is written when on_message returns.

Further arguments: "concurrency=N" and "receive-maximum=N" tell the broker so, at 5.0. Otherwise the library's defaults
apply, 3.1.1 among them. A message's payload is "NUMBER SENT_US WORK_US"; its work takes FACTOR times WORK_US. Prints
"NUMBER BEGUN_US" when a message's work begins.
"""

import signal
import sys
import time

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

host, port, client_id, factor, style = sys.argv[1:6]
told = dict(argument.split("=") for argument in sys.argv[6:])


def on_connect(client, userdata, flags, reason, properties):
    client.subscribe("$share/g/work", qos=1)


def on_message(client, userdata, message):
    number, _sent, work = message.payload.decode().split()
    print(number, time.time_ns() // 1000, flush=True)
    time.sleep(int(work) * int(factor) / 1e6)


options, properties = {}, None
if told:
    options = {"protocol": mqtt.MQTTv5}
    properties = Properties(PacketTypes.CONNECT)
    if "concurrency" in told:
        properties.UserProperty = ("concurrency", told["concurrency"])
    if "receive-maximum" in told:
        properties.ReceiveMaximum = int(told["receive-maximum"])

client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id, **options)
client.on_connect = on_connect
client.on_message = on_message
client.connect(host, int(port), properties=properties)
if style == "loop-start":
    client.loop_start()
    signal.pause()
else:
    client.loop_forever()
