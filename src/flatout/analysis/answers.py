"""What people ask of every run, answered from its files: one list for the terminal, the page and Markdown alike."""

from typing import Any, NamedTuple

from flatout.analysis.details import Details
from flatout.analysis.epoch_ledger import explain_difference
from flatout.analysis.network import correlation, network_rates, step_times_by_network
from flatout.config.tasks import metric_named, spec_of
from flatout.units import format_bits_per_second, format_bytes, format_seconds, format_share, format_usd

_ON_DEVICE = ("copy", "forward", "backward", "communication", "optimizer")
_SATURATED = 0.9  # of the link
_WAITS = 0.1  # of the time after the start
_NO_READING = " of the wall clock (utilisation is read from a GPU's driver, which was not there)"
_SHOWN_CLASSES = 12
_LONG_NAME = 40


class Answer(NamedTuple):
    """A question, and the sentence that answers it."""

    question: str
    answer: str


def answers(details: Details) -> list[Answer]:
    """Every question of the five stories; what was not measured says so."""
    rows = {
        "Did it fail or stop early?": _outcome,
        "How long did it take?": _duration,
        "How good is it?": _accuracy,
        "Fully trained?": _trained,
        "Overfitting?": _overfitting,
        "What did it cost?": _cost,
        "How fast?": _speed,
        "Where did the time go?": _compute,
        "What took the start?": _start,
        "How long did loading take?": _loading,
        "Is the device used?": _device,
        "Was the network the limit?": _network,
        "Does step time follow the network?": _network_steps,
        "What is the learning rate?": _learning_rate,
        "How large is the data?": _data,
        **({"Which classes?": _classes} if details.classes else {}),
        "What is in a checkpoint?": _checkpoint,
        "Estimate against actual epoch?": _estimate,
        "First epoch against the others?": _cold,
    }
    return [Answer(question, tell(details)) for question, tell in rows.items()]


def _part(details: Details, name: str) -> dict[str, Any]:
    return details.run.summary.get(name) or {}


def is_emulated(details: Details) -> bool:
    """Whether compute was replaced by a calibrated wait."""
    return bool(_part(details, "device").get("emulated"))


def _outcome(details: Details) -> str:
    summary, status = details.run.summary, details.run.status
    attempts = summary.get("attempts") or 1
    again = f", in {attempts} attempts" if attempts > 1 else ""
    words = {"completed": "no, it ran to its end", "running": "it is still running", "stopped": "it was stopped"}
    cause = f": {summary['cause']}" if summary.get("cause") else ""
    return f"{words.get(status, 'it failed')}{again}{cause}"


def _duration(details: Details) -> str:
    wall, run = _part(details, "time").get("wall_seconds"), details.run
    planned = (run.config.get("train") or {}).get("epochs")
    epochs = f"{len(run.epochs)} of {planned} epochs" if planned else f"{len(run.epochs)} epochs"
    samples = f"{run.summary.get('samples_seen') or 0:,} samples"
    return f"{format_seconds(wall)} for {epochs}, {len(run.steps):,} steps, {samples}"


def _accuracy(details: Details) -> str:
    found = _part(details, "accuracy")
    names = [name for name in found if name not in ("best_epoch", "val_loss", "train_loss") and found[name] is not None]
    if not names:
        return "n/a (not validated yet)"
    metrics = [f"{metric_named(name).title} {metric_named(name).write(found[name])}" for name in names]
    losses = [f"{metric_named(n).title} {found[n]:.3f}" for n in ("val_loss", "train_loss") if found.get(n) is not None]
    best = [] if found.get("best_epoch") is None else [f"best in epoch {found['best_epoch'] + 1}"]
    warning = ["the device is EMULATED: this means nothing"] if is_emulated(details) else []
    return ", ".join([*metrics, *losses, *best, *warning])


def _trained(details: Details) -> str:
    found = details.convergence
    word = {"trained": "yes", "overfitting": "yes, and past its best", "unknown": "n/a"}.get(found["verdict"], "no")
    return f"{word}: {found['why']}" if word in ("yes", "n/a") else f"{word} ({found['verdict']}): {found['why']}"


def _overfitting(details: Details) -> str:
    return details.convergence.get("overfitting_why") or "n/a"


def _cost(details: Details) -> str:
    found = _part(details, "cost")
    if found.get("total_usd") is None:
        return "n/a (set cost.instance or cost.usd_per_hour)"
    lines = ", ".join(f"{line['name']} {format_usd(line['usd'])}" for line in found.get("lines") or [])
    epochs = len(details.run.epochs)
    each = f"; {format_usd(found['total_usd'] / epochs)} per epoch" if epochs else ""
    return f"{format_usd(found['total_usd'])} ({lines}){each}" if lines else f"{format_usd(found['total_usd'])}{each}"


def _speed(details: Details) -> str:
    found = _part(details, "throughput")
    if found.get("samples_per_second") is None:
        return "n/a (no steps yet)"
    mean, p50, p95 = (format_seconds((found.get("step_seconds") or {}).get(name)) for name in ("mean", "p50", "p95"))
    return f"{found['samples_per_second']:,.0f} samples/s; a step takes {mean} (median {p50}, 95 % below {p95})"


def _compute(details: Details) -> str:
    time = _part(details, "time")
    wall, parts = time.get("wall_seconds"), time.get("parts") or {}
    if not wall:
        return "n/a"
    device = sum(parts.get(name) or 0.0 for name in _ON_DEVICE)
    rest = sorted(((parts[n] or 0.0, n) for n in parts if n not in _ON_DEVICE), reverse=True)
    words = [
        f"{name.replace('_', ' ')} {format_share(seconds, wall)}" for seconds, name in rest if seconds > 0.01 * wall
    ]
    where = "the emulated device" if is_emulated(details) else "the device"
    return f"{format_share(device, wall)} ({format_seconds(device)}) on {where}; {', '.join(words) or 'little else'}"


def _start(details: Details) -> str:
    """Of the last attempt, until its first batch was there."""
    parts = _part(details, "time").get("startup_parts") or {}
    if not parts:
        return "n/a"
    named = sorted(((seconds, name) for name, seconds in parts.items()), reverse=True)
    words = [f"{name.replace('_', ' ')} {format_seconds(seconds)}" for seconds, name in named if seconds >= 0.01]
    return f"{format_seconds(sum(parts.values()))} to the first batch: {', '.join(words)}"


def _loading(details: Details) -> str:
    data, parts = _part(details, "data"), _part(details, "time").get("parts") or {}
    if data.get("fetch_seconds") is None:
        return "n/a"
    wait = format_seconds(parts.get("data_wait"))
    stages = ", ".join(f"{n} {format_seconds(data.get(f'{n}_seconds'))}" for n in ("fetch", "decode", "augment"))
    hits, misses = data.get("cache_hits") or 0, data.get("cache_misses") or 0
    cached = f"; {format_share(hits, hits + misses)} of samples from the cache" if hits + misses else ""
    return f"training waited {wait}; workers spent {stages} in parallel{cached}{_shared(details)}"


def _shared(details: Details) -> str:
    """Of a run that shared its batches: who made them."""
    use = _part(details, "shared")
    made_here = (use.get("local") or 0) + (use.get("alone") or 0)
    total = (use.get("hits") or 0) + made_here
    return (
        f"; {format_share(total - made_here, total)} of {total} batches were shared, {made_here} made here"
        if total
        else ""
    )


def _device(details: Details) -> str:
    use, device = _part(details, "device_use"), _part(details, "device")
    name = f"{device.get('name') or 'n/a'} (emulated)" if is_emulated(details) else str(device.get("name") or "n/a")
    busy, utilization = use.get("busy_fraction"), use.get("utilization_mean")
    known = [] if busy is None else [f"busy {100 * busy:.0f} %{_NO_READING * (utilization is None)}"]
    known += [] if utilization is None else [f"utilisation {100 * utilization:.0f} %"]
    memory = use.get("memory_peak_bytes")
    holder = f" ({use['memory_peak_of']})" if use.get("memory_peak_of") else ""
    known += [f"memory peak {format_bytes(memory)}{holder}"] if memory is not None else []
    known += [f"{use['power_watts_mean']:.0f} W"] if use.get("power_watts_mean") is not None else []
    return f"{name}: {', '.join(known) or 'utilisation n/a, memory n/a'}"


def _network(details: Details) -> str:
    found, time = _part(details, "network"), _part(details, "time")
    sent, received, peak, link = (
        found.get(n) for n in ("bytes_sent", "bytes_received", "peak_bits_per_second", "link_bits_per_second")
    )
    if sent is None and received is None:
        return "n/a (traffic was not measured)"
    traffic = f"{format_bytes(sent)} sent, {format_bytes(received)} received, peak {format_bits_per_second(peak)}"
    if not link or peak is None:
        return f"cannot be told without the link's speed: {traffic}"
    cap = found.get("link_cap_bits_per_second")  # measured between ranks: a round figure is a port's speed
    named = "" if cap is None else f", which is a {format_bits_per_second(cap)} port"
    use = f"{traffic} of a {format_bits_per_second(link)} link{named} ({format_share(peak, link)})"
    parts = time.get("parts") or {}
    exchange = parts.get("communication") or 0
    training = (time.get("wall_seconds") or 0) - (parts.get("startup") or 0)  # a slow start has used no link
    waits = (parts.get("data_wait") or 0) + exchange > _WAITS * training
    full_seconds = 8 * max(sent or 0, received or 0) / link  # readings a second apart average short bursts away
    if exchange > _WAITS * training and full_seconds > exchange / 2:
        share = format_share(exchange, training)
        return f"yes, very likely: {share} of the time after the start ranks waited for their exchange; {use}"
    if peak < _SATURATED * link:
        return f"no: {use}"
    return f"{'yes, very likely' if waits else 'no, though it was full at times: training hardly waited'}: {use}"


def _network_steps(details: Details) -> str:
    points = network_points(details)
    r = correlation(points)
    if r is None:
        return "n/a (too few readings)"
    relation = "slower steps move more data" if r > 0.5 else "slower steps move less data" if r < -0.5 else "hardly"
    return f"{relation} (correlation {r:+.2f} over {len(points):,} steps)"


def network_points(details: Details) -> list[tuple[float, float]]:
    """Bits per second and seconds of every step that has a reading near it."""
    rates = network_rates(details.system, _part(details, "network").get("interface"))
    return step_times_by_network(details.run.steps, rates)


_WHY = {
    "cosine": "it falls slowly at first and slowly at the end, so that the weights settle",
    "linear": "it falls evenly to nothing, so that the weights settle",
    "one-cycle": "a high rate in the middle regularises, the long fall lets the weights settle",
    "step": "each drop lets the weights settle once progress at the rate before it has ended",
    "constant": "nothing settles the weights at the end",
    "inverse-sqrt": "it falls ever more slowly, so training can go on for as long as one likes (transformers)",
}


def _learning_rate(details: Details) -> str:
    train, text = details.run.config.get("train") or {}, _part(details, "learning_rate").get("schedule")
    schedule = str(train.get("schedule"))
    if not train:
        return "n/a"
    words = text or f"{schedule}, peak {train.get('lr')}, {train.get('warmup_epochs')} epochs of warm-up"
    warms_up = train.get("warmup_steps") or (train.get("warmup_steps") is None and train.get("warmup_epochs"))
    warm = "; the warm-up keeps large first steps from wrecking fresh weights" if warms_up else ""
    return f"{words}: {_WHY[schedule]}{warm}" if schedule in _WHY else words


def _data(details: Details) -> str:
    data = _part(details, "data")
    if data.get("samples_total") is None:
        return "n/a"
    bad = data.get("quarantined") or 0
    read = f", {format_bytes(data['bytes_read'])} read in all" if data.get("bytes_read") is not None else ""
    size = format_bytes(data.get("dataset_bytes"))
    unit = spec_of(details.run.summary.get("task")).sample_noun
    train = (data.get("splits") or {}).get("train")
    of_these = f" (for training {train['samples']:,}, {format_bytes(train['bytes'])})" if train else ""
    changes = details.run.summary.get("data_changes") or []
    changed = f"; CHANGED in the middle of the run: {'; '.join(map(str, changes))}" if changes else ""
    return f"{data['samples_total']:,} {unit}, {size}{of_these}{read}, {bad:,} in quarantine{changed}"


def _classes(details: Details) -> str:
    names = [name if len(name) <= _LONG_NAME else f"{name[: _LONG_NAME - 1]}…" for name in details.classes]
    if len(names) > _SHOWN_CLASSES:
        names = [*names[: _SHOWN_CLASSES - 2], "…", names[-1]]
    all_in = " (all in classes.json)" if len(names) < len(details.classes) else ""
    return f"{len(details.classes):,}: {', '.join(names)}{all_in}"


def _checkpoint(details: Details) -> str:
    found = _part(details, "checkpoint")
    files = [(name, size) for name, size in details.checkpoints if size]
    if not files:
        count = found.get("files")
        return f"{count} files, {format_bytes(found.get('bytes'))}" if count else "no checkpoint yet"
    total = format_bytes(sum(size for _, size in files))
    each = f"one file (weights, optimizer, progress) of {format_bytes(max(size for _, size in files))}"
    took = f", {format_seconds(found.get('seconds'))} to write all" if found.get("seconds") is not None else ""
    return f"{each}; {len(files)} kept, {total}{took}; best and last are links"


def _estimate(details: Details) -> str:
    finished = {int(row["epoch"]) for row in details.run.epochs}
    whole = [account for account in details.accounts if account.epoch in finished]
    text = explain_difference(whole)
    if text is None:
        return "n/a (no finished epoch)"
    again = any(account.restarted for account in whole)
    return f"{text}{' (with steps done again after a restart)' if again else ''}"


def _cold(details: Details) -> str:
    seconds = [account.actual for account in details.accounts if not account.restarted]
    if len(seconds) < 2:
        return "n/a (fewer than two epochs)"
    warm = sorted(seconds[1:])[len(seconds[1:]) // 2]
    return f"{format_seconds(seconds[0])} against a median of {format_seconds(warm)} ({seconds[0] / warm:.2f} times)"
