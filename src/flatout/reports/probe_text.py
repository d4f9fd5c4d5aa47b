"""What a probe measured, in words: how fast the device is, how fast pictures are prepared for it, and which of the two
a run would wait for."""

from flatout.diagnosis.calibration import Calibration
from flatout.units import format_seconds

_TRUSTED = 0.1  # a model that is this close to real steps is good enough to decide by


def probe_lines(calibration: Calibration, residual: float) -> list[str]:
    """`residual` is what the model misses of real steps, as a share."""
    device, batch = calibration.device, calibration.settings.batch_size
    step = device.base_seconds + batch * device.seconds_per_sample
    work = calibration.decode_seconds + calibration.augment_seconds
    alone, cores = calibration.fetch_seconds + work, max(1.0, calibration.cores)
    slower = 1 + calibration.contention if cores > 1 else 1.0
    wanted, offered = batch / step, cores / (alone * slower) if alone > 0 else float("inf")
    lines = [
        f"The device takes {format_seconds(step)} for a batch of {batch}: {format_seconds(device.base_seconds)} for "
        f"any batch, and {format_seconds(device.seconds_per_sample)} for each sample. It could train {_rate(wanted)}.",
        f"One core prepares a sample in {format_seconds(alone)}: {format_seconds(calibration.fetch_seconds)} to fetch "
        f"its bytes, {format_seconds(work)} to decode and augment it.",
    ]
    if cores > 1:
        lines.append(
            f"With all {cores:.3g} cores at work each is {100 * calibration.contention:.0f} % slower, so together they "
            f"prepare {_rate(offered)}."
        )
    if offered < wanted:
        lines.append(
            f"The device would wait: it could train {_rate(wanted)}, and {_rate(offered)} can be prepared here. Fewer "
            "or smaller pictures to decode (data.cache, flatout data pack, data.decode) or more cores help."
        )
    else:
        lines.append("Preparing keeps up with the device: a run here is as fast as the device is.")
    trust = "predictions can be trusted" if abs(residual) <= _TRUSTED else "predictions from it are rough"
    amount = f"{100 * abs(residual):.1f} % {'slower' if residual > 0 else 'faster'}"
    lines.append(f"Checked against real steps: this model is {amount} than they were; {trust}.")
    return lines


def _rate(samples_per_second: float) -> str:
    return f"{samples_per_second:,.0f} samples a second"
