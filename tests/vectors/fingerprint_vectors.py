#!/usr/bin/env python3
"""Recomputes every fingerprint and chain of vectors.json from docs/fingerprint.md alone.

Shares no code with the services and uses no protobuf: where both give the same
hashes, the page says enough. `--write` fills in the expected hashes of new cases.
"""

import hashlib
import json
import sys

TRACING = {"traceparent", "tracestate"}


def be32(number):
    return number.to_bytes(4, "big")


def be64(number):
    return (number % 2**64).to_bytes(8, "big")


def sized(data):
    return be32(len(data)) + data


def canonical_number(number):
    """As ECMAScript prints a double; enough for the numbers in the vectors."""
    if number == int(number) and abs(number) < 1e21:
        return str(int(number))
    text = repr(float(number))
    mantissa, e, exponent = text.partition("e")
    return mantissa + (f"e{int(exponent):+d}" if e else "")


def canonical(value):
    """RFC 8785: members sorted by UTF-16 code units, no white space."""
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: name.encode("utf-16-be"))
        return "{" + ",".join(canonical(n) + ":" + canonical(value[n]) for n in names) + "}"
    if isinstance(value, list):
        return "[" + ",".join(canonical(v) for v in value) + "]"
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return canonical_number(value)


def payload(case):
    """The payload's bytes and the content type that stands for an empty one."""
    if "json" in case:
        return canonical(case["json"]).encode(), "application/json"
    if "json_text" in case:
        return case["json_text"].encode(), "application/json"
    return bytes.fromhex(case.get("binary_hex", "")), "application/octet-stream"


def fingerprint(case):
    data, default_type = payload(case)
    content_type = case.get("content_type") or default_type
    parts = [b"\x01"]
    for text in (case["type"], case.get("subject", ""), content_type):
        parts.append(sized(text.encode()))
    parts.append(sized(data))
    attributes = sorted(
        (name.encode(), value.encode())
        for name, value in case.get("attributes", {}).items()
        if name not in TRACING
    )
    parts.append(be32(len(attributes)))
    for name, value in attributes:
        parts.append(sized(name) + sized(value))
    version = case.get("expected_version")
    parts.append(b"\x00" if version is None else b"\x01" + be64(version))
    time = case.get("first_attempt_time")
    parts.append(b"\x00" if time is None else b"\x01" + be64(time["seconds"]) + be32(time["nanos"]))
    return hashlib.sha256(b"".join(parts)).digest()


def link(before, sequence, print_, key):
    return hashlib.sha256(before + be64(sequence) + print_ + sized(key.encode())).digest()


def main():
    write = "--write" in sys.argv
    path = [a for a in sys.argv[1:] if not a.startswith("-")][0]
    with open(path, encoding="utf-8") as file:
        vectors = json.load(file)
    wrong = 0
    chain = bytes(32)
    for sequence, case in enumerate(vectors["cases"]):
        print_ = fingerprint(case)
        chain = link(chain, sequence, print_, case["key"])
        for name, value in (("fingerprint", print_.hex()), ("chain", chain.hex())):
            if write:
                case[name] = value
            elif case.get(name) != value:
                wrong += 1
                print(f"{case['name']}: {name} is {case.get(name)}, computed {value}")
    if write:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(vectors, file, ensure_ascii=False, indent=2)
            file.write("\n")
    print(f"{len(vectors['cases'])} cases, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
