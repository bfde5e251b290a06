"""Measures a broker with librdkafka's client, against another one in alternation.

`python -m bench --help` from this folder. What is promised are ratios taken in one run: both
brokers see the same machine, minute by minute, and the spread says how much to believe.
"""
