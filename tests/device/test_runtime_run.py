"""Programs on a device: calls, overlap, donation, loops, packed dispatches, checked mode, profiling."""

from __future__ import annotations

import gc
import threading

import handmade
import numpy as np
import pytest
from k3jit.lowering.program import Buffer, Dispatch, Ref
from k3jit.runtime.device import Device, default_device


@pytest.fixture
def device() -> Device:
    found = default_device()
    assert isinstance(found, Device)
    return found


def numbers(start: int = 0) -> np.ndarray:
    return np.arange(start, start + handmade.SIZE, dtype=np.int32)


def fetch(device: Device, buffer: object) -> np.ndarray:
    return device.download(buffer).view(np.int32)  # type: ignore[arg-type]


def test_one_call(device: Device) -> None:
    executable = device.load(handmade.adding_program(device.caps, amount=-7))
    (result,) = executable.run([device.upload(numbers())])
    np.testing.assert_array_equal(fetch(device, result), numbers() - 7)
    assert executable.dispatches == 1


def test_calls_chain_without_waiting(device: Device) -> None:
    executable = device.load(handmade.adding_program(device.caps))
    buffer = device.upload(numbers())
    for _ in range(20):  # far more than there are instances
        (buffer,) = executable.run([buffer])
    np.testing.assert_array_equal(fetch(device, buffer), numbers() + 20)


def test_results_in_flight_stay_apart(device: Device) -> None:
    executable = device.load(handmade.chain_program(device.caps, 9))
    results = [executable.run([device.upload(numbers(100 * i))])[0] for i in range(12)]
    for i, result in enumerate(results):
        np.testing.assert_array_equal(fetch(device, result), numbers(100 * i) + 9)


@pytest.mark.parametrize("length", [1, 2, 31, 2001])
def test_chains_of_dependent_dispatches(device: Device, length: int) -> None:
    executable = device.load(handmade.chain_program(device.caps, length))
    assert executable.dispatches == length
    (result,) = executable.run([device.upload(numbers())])
    np.testing.assert_array_equal(fetch(device, result), numbers() + length)


def test_programs_share_scratch_memory(device: Device) -> None:
    small, large = (device.load(handmade.chain_program(device.caps, 5, size)) for size in (1000, 70_000))
    data = np.arange(70_000, dtype=np.int32)
    first = small.run([device.upload(data[:1000])])[0]
    second = large.run([device.upload(data)])[0]  # the scratch memory grows and moves
    third = small.run([first])[0]
    np.testing.assert_array_equal(fetch(device, second), data + 5)
    np.testing.assert_array_equal(fetch(device, third), data[:1000] + 10)


def test_donated_memory_is_taken_over(device: Device) -> None:
    executable = device.load(handmade.adding_program(device.caps, alias=0))
    buffer = device.upload(numbers())
    (result,) = executable.run([buffer], donate={0})
    assert result is buffer
    np.testing.assert_array_equal(fetch(device, result), numbers() + 1)
    (kept,) = executable.run([result])
    assert kept is not result
    np.testing.assert_array_equal(fetch(device, result), numbers() + 1)
    np.testing.assert_array_equal(fetch(device, kept), numbers() + 2)


def test_pinned_memory_is_not_taken_over(device: Device) -> None:
    executable = device.load(handmade.adding_program(device.caps, alias=0))
    buffer = device.upload(numbers())
    shown = device.view(buffer)
    assert shown is not None and not shown.flags.writeable
    (result,) = executable.run([buffer], donate={0})
    assert result is not buffer
    del buffer
    gc.collect()
    device.upload(np.full(handmade.SIZE, -1, np.int32))
    np.testing.assert_array_equal(shown.view(np.int32), numbers())
    np.testing.assert_array_equal(fetch(device, result), numbers() + 1)


def test_argument_returned_as_it_is(device: Device) -> None:
    buffers = [Buffer("input", handmade.BYTES, index=0)]
    executable = device.load(handmade.program(device.caps, [], buffers, [], 1, [0, 0]))
    buffer = device.upload(numbers())
    first, second = executable.run([buffer], donate={0})
    assert first is buffer and second is buffer and buffer.pinned
    assert executable.dispatches == 0


def test_empty_dispatch_is_skipped(device: Device) -> None:
    made = handmade.adding_program(device.caps)
    (step,) = made.steps
    assert isinstance(step, Dispatch)
    made.steps = [Dispatch(0, (0, 1, 1), step.rows), step]
    executable = device.load(made)
    assert executable.dispatches == 1
    (result,) = executable.run([device.upload(numbers())])
    np.testing.assert_array_equal(fetch(device, result), numbers() + 1)


@pytest.mark.parametrize("limit", [0, 1, 3, 10])
def test_loop_on_the_host(device: Device, limit: int) -> None:
    executable = device.load(handmade.counting_program(device.caps, limit))
    for _ in range(2):
        (result,) = executable.run([device.upload(numbers())])
        np.testing.assert_array_equal(fetch(device, result), numbers() + -(-limit // 3) * 3)


def test_packed_dispatch(device: Device) -> None:
    executable = device.load(handmade.packed_program(device.caps, 5))
    assert executable.dispatches == 1
    results = executable.run([device.upload(numbers(10 * i)) for i in range(5)])
    for i, result in enumerate(results):
        np.testing.assert_array_equal(fetch(device, result), numbers(10 * i) + i + 1)


def test_wrong_number_of_arguments(device: Device) -> None:
    executable = device.load(handmade.adding_program(device.caps))
    with pytest.raises(ValueError, match="takes 1 buffers, got 0"):
        executable.run([])


def test_too_many_workgroups(device: Device) -> None:
    made = handmade.adding_program(device.caps)
    (step,) = made.steps
    assert isinstance(step, Dispatch)
    made.steps = [Dispatch(0, (1, 1, device.caps.max_groups[2] + 1), step.rows)]
    with pytest.raises(ValueError, match="workgroups"):
        device.load(made)


@pytest.mark.parametrize("far", [0, 5, -3])
def test_checked_mode_names_the_kernel(device: Device, far: int) -> None:
    lanes = device.caps.subgroup_size
    buffers = [Buffer("output", 4 * lanes, index=0)]
    step = Dispatch(0, (1, 1, 1), ((Ref(0, 0, 4 * lanes), far),))
    made = handmade.program(device.caps, [handmade.stray_kernel(lanes)], buffers, [step], 0, [0], checked=True)
    executable = device.load(made)
    assert executable.checked
    for _ in range(2):
        if far:
            with pytest.raises(RuntimeError, match=r"kernel stray from user.py:7 left parameter 'target'") as caught:
                executable.run([])
            index = int(str(caught.value).split("index ")[1].split()[0])
            assert index in (range(lanes, lanes + far) if far > 0 else range(far, 0))
        else:
            executable.run([])


def test_checked_mode_of_a_correct_program(device: Device) -> None:
    made = handmade.adding_program(device.caps)
    lanes = device.caps.subgroup_size
    made = handmade.program(device.caps, [handmade.add_kernel(lanes)], made.buffers, made.steps, 1, [1], checked=True)
    executable = device.load(made)
    (result,) = executable.run([device.upload(numbers())])
    np.testing.assert_array_equal(fetch(device, result), numbers() + 1)


def test_profile(device: Device) -> None:
    executable = device.load(handmade.counting_program(device.caps, 6))
    before = device.live()
    times = executable.profile([device.upload(numbers())])
    assert [name for name, _ in times] == ["add", "below"] + ["add", "add", "below"] * 2
    assert all(0 <= seconds < 1 for _, seconds in times)
    assert {k: v for k, v in device.live().items() if k[0].isupper()} == {k: v for k, v in before.items() if k[0].isupper()}


def test_threads(device: Device) -> None:
    executable = device.load(handmade.chain_program(device.caps, 5))
    problems: list[str] = []

    def work(start: int) -> None:
        for i in range(10):
            data = numbers(start + i)
            (result,) = executable.run([device.upload(data)])
            if not np.array_equal(fetch(device, result), data + 5):
                problems.append(f"{start}, {i}")

    threads = [threading.Thread(target=work, args=(1000 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
