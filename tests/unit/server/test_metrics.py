"""The gauges of engines: unlabelled for one, labelled by engine for several."""

from __future__ import annotations

from appliance.server.metrics import Metrics


def test_one_engine_has_no_label_and_several_have_one_each() -> None:
    one = Metrics().exposition({"engine": {"running": 3.0}}).decode()
    assert "appliance_engine_up 1.0\n" in one
    assert "appliance_engine_running 3.0\n" in one
    two = Metrics().exposition({"engine-0": {"running": 3.0}, "engine-1": None}).decode()
    assert 'appliance_engine_up{engine="engine-0"} 1.0\n' in two
    assert 'appliance_engine_up{engine="engine-1"} 0.0\n' in two
    assert 'appliance_engine_running{engine="engine-0"} 3.0\n' in two
    assert 'appliance_engine_running{engine="engine-1"}' not in two
