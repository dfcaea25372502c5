"""Scapy's side of `scapy.rs`: a line for each message.

A line of input is the message type, the fields by Scapy's names, a tab and the bytes in hexadecimal digits. The answer is the
bytes that Scapy builds from those fields, a tab, and the fields that Scapy reads from those bytes. A field with bytes is
written as `x` and hexadecimal digits, any other field as a number.
"""

import sys

from scapy.contrib.mqttsn import MQTTSN

LAYERS = {fields["type"]: layer for fields, layer in MQTTSN.payload_guess}


def value(text):
    return bytes.fromhex(text[1:]) if text[0] == "x" else int(text)


def build(kind, *fields):
    if not fields:
        # Scapy cannot compute the length of a DISCONNECT without Duration.
        return MQTTSN(type=int(kind), len=2)
    pairs = (field.split("=") for field in fields)
    return MQTTSN(type=int(kind)) / LAYERS[int(kind)](**{name: value(text) for name, text in pairs})


def read(data):
    packet = MQTTSN(data)
    words = [str(packet.type)]
    for field in packet.payload.fields_desc:
        found = packet.payload.getfieldval(field.name)
        if found is not None:
            words.append(f"{field.name}={'x' + found.hex() if isinstance(found, bytes) else found}")
    return " ".join(words)


for line in sys.stdin.read().splitlines():
    fields, data = line.split("\t")
    print(bytes(build(*fields.split())).hex(), read(bytes.fromhex(data)), sep="\t")
