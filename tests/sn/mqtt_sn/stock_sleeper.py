"""A client of the unmodified Python package `mqtt-sn-12` that sleeps, wakes, and wakes again at once.

It prints `asleep`, a line for each message, and `awake` at the end of each wake.

    python3 tests/sn/mqtt_sn/stock_sleeper.py PORT CLIENT_ID FILTER SECONDS
"""

import sys
import time

from mqttsn12.client.MqttSnClient import MqttSnClient, MqttSnListener
from mqttsn12.MqttSnConstants import MqttSnConstants
from mqttsn12.packets import PingReqPacket

PORT, CLIENT_ID, FILTER, SECONDS = sys.argv[1:]


class Listener(MqttSnListener):
    def message_arrived(self, message):
        print(message.get_payload().decode(), flush=True)


class Sleeper(MqttSnClient):
    is_awake = False

    def receive_packet(self, blocking):
        datagram = super().receive_packet(blocking)
        if datagram and datagram[1] == MqttSnConstants.TYPE_PINGRESP:
            self.is_awake = False
        return datagram

    def wake(self):
        request = PingReqPacket()
        # Not by `set_client_id`, whose bytes `encode` does not take.
        request.client_id = self.client_id
        self.is_awake = True
        self.send_packet(request.encode())
        while self.is_awake:
            self.polling()
            time.sleep(0.01)
        print("awake", flush=True)


client = Sleeper()
client.set_client_id(CLIENT_ID)
client.open("127.0.0.1", int(PORT))
client.send_connect()
# At QoS 0: this client acknowledges no QoS 1 message, so that each would be repeated.
client.send_subscribe(FILTER, 0, Listener())
client.send_disconnect(int(SECONDS))
print("asleep", flush=True)
time.sleep(int(SECONDS))
client.wake()
client.wake()
client.close()
