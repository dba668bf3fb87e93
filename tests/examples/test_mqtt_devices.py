"""examples/mqtt-devices: a panel receives states and alarms, also those published while it was away."""

from conftest import EXAMPLES

DIRECTORY = EXAMPLES / "mqtt-devices"


def test_panel_misses_nothing_while_it_is_away(broker_process, start, unique):
    at = ("--host", broker_process.mqtt.host, "--port", broker_process.mqtt.port)
    panel = (DIRECTORY / "panel.py", *at, "--id", unique)
    first = start(*panel, "--messages", 3)
    first.wait_for("subscribed")
    start(DIRECTORY / "press.py", *at, 7, 61.5, 83.0).finish()
    lines = first.finish()
    assert lines[0] == "new session"
    # QoS 1 messages of one publisher keep their order.
    assert lines[2:] == ["plant/7/state online", "alarm/7 83.0 degrees", "plant/7/state offline"]

    start(DIRECTORY / "press.py", *at, 8, 95.0).finish()
    lines = start(*panel, "--messages", 3).finish()
    assert lines == ["session present", "plant/8/state online", "alarm/8 95.0 degrees", "plant/8/state offline"]


def test_broker_reports_a_press_that_dies(broker_process, start, unique):
    at = ("--host", broker_process.mqtt.host, "--port", broker_process.mqtt.port)
    panel = start(DIRECTORY / "panel.py", *at, "--id", unique)
    panel.wait_for("subscribed")
    # Enough readings that the press is still at work when it is killed.
    press = start(DIRECTORY / "press.py", *at, 9, *["99.0"] * 5000)
    panel.wait_for("alarm/9 99.0 degrees")
    press.process.kill()
    panel.wait_for("plant/9/state offline")
