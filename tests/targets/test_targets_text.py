"""The parsers of the compiler's texts, on small stored ones; no compiler."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from aka.errors import UsageError
from aka.targets import aot, chips, errortext, hlo, llo

DATA = Path(__file__).parent / "data"
ARRAY = 64 * 1024 * 4
LINE = 1024 * 4
BY_ONE = "add(%i, %one)"


@pytest.fixture(scope="module")
def streams() -> dict[str, hlo.Row]:
    return {r.name: r for r in hlo.rows((DATA / "streams.hlo.txt").read_text())}


@pytest.fixture(scope="module")
def matrices() -> dict[str, hlo.Row]:
    return {r.name: r for r in hlo.rows((DATA / "matrices.hlo.txt").read_text())}


def test_an_operand_in_vmem_costs_no_hbm(streams: dict[str, hlo.Row]) -> None:
    assert streams["sum"].hbm_bytes == 2 * ARRAY
    assert streams["sum"].in_hbm == (False, True, True)


def test_an_asynchronous_copy_overlaps_and_counts_its_hbm_end_once(streams: dict[str, hlo.Row]) -> None:
    assert streams["copy-start"].overlaps
    assert streams["copy-start"].hbm_bytes == ARRAY
    assert "copy-done" not in streams


def test_a_fusion_that_slices_reads_the_slice(streams: dict[str, hlo.Row]) -> None:
    assert streams["take"].hbm_bytes == 2 * LINE + 4
    assert streams["take"].cycles == 300


def test_an_update_in_place_moves_the_update_only(streams: dict[str, hlo.Row]) -> None:
    assert streams["put"].hbm_bytes == 2 * LINE + 4
    assert streams["put"].cycles is None


def test_a_loop_runs_from_its_first_count_to_its_limit(streams: dict[str, hlo.Row]) -> None:
    assert (streams["take"].trips, streams["take"].exact_trips) == (50, True)
    assert streams["sum"].trips == 1


def test_a_loop_of_unknown_length_counts_once_and_says_so() -> None:
    text = (DATA / "streams.hlo.txt").read_text().replace("%limit = s32[]{:T(128)} constant(60)", "")
    rows = {r.name: r for r in hlo.rows(text)}
    assert (rows["take"].trips, rows["take"].exact_trips) == (1, False)


def test_a_counter_that_does_not_grow_by_one_tells_no_trips() -> None:
    text = (DATA / "streams.hlo.txt").read_text()
    assert text.count(BY_ONE) == 1
    for other in (BY_ONE.replace("add", "multiply"), BY_ONE.replace("%one", "%taken")):
        rows = {r.name: r for r in hlo.rows(text.replace(BY_ONE, other))}
        assert (rows["take"].trips, rows["take"].exact_trips) == (1, False)


def test_an_annotated_trip_count_wins() -> None:
    note = 'body=%body, backend_config={"known_trip_count":{"n":"7"}}'
    text = (DATA / "streams.hlo.txt").read_text().replace("body=%body", note)
    assert {r.name: r.trips for r in hlo.rows(text)}["put"] == 7


def test_a_batched_matmul_written_as_a_convolution_counts_real_positions(matrices: dict[str, hlo.Row]) -> None:
    assert matrices["attention"].flops == 2 * 32 * 256 * 256 * 128
    assert matrices["attention"].flops_dtype == "bfloat16"


def test_padding_of_a_convolution_is_no_work(matrices: dict[str, hlo.Row]) -> None:
    along_one_axis = 3 * 8 - 2
    assert matrices["padded"].flops == 2 * 2 * along_one_axis**2 * 16 * 32


def test_highest_precision_takes_six_passes(matrices: dict[str, hlo.Row]) -> None:
    assert matrices["plain"].flops == 2 * 512 * 256 * 1024
    assert matrices["precise"].flops == 6 * matrices["plain"].flops


def test_only_a_pallas_call_is_a_kernel(matrices: dict[str, hlo.Row]) -> None:
    assert [name for name, row in matrices.items() if row.kernel] == ["kernel"]


def test_cycles_come_from_the_text_protos() -> None:
    assert llo.cycles(str(DATA / "dump")) == {"fusion.1": 5616}


def test_slots_are_the_fullest_of_each_unit() -> None:
    found = llo.bundles(str(DATA / "dump"))
    assert list(found) == ["fusion.1"]
    op = found["fusion.1"]
    assert op.bundles == 1704
    assert op.slots == pytest.approx(
        {"mxu": 0.0, "xlu": 0.3005, "valu": 0.7588, "eup": 0.6009, "load": 0.2592, "store": 0.2289, "scalar": 0.005}
    )
    assert (op.spills, op.fills) == (771, 770)
    assert op.starved == pytest.approx(322 / 1704)


def test_clear_empties_the_folder(tmp_path: Path) -> None:
    copy = tmp_path / "dump"
    shutil.copytree(DATA / "dump", copy)
    llo.clear(str(copy))
    assert list(copy.iterdir()) == []
    assert llo.cycles(str(copy)) == {}


def test_an_unknown_chip_is_told_the_known_ones() -> None:
    with pytest.raises(UsageError, match="v4, v5e, v5p, v6e, tpu7x"):
        chips.chip("v9")


@pytest.mark.parametrize("chip", chips.CHIPS.values(), ids=lambda c: c.name)
def test_the_clock_and_the_matrix_units_give_the_published_peak(chip: chips.Chip) -> None:
    multiply_adds = 2 * 2 * 256 * 256 if chip.name in ("v6e", "tpu7x") else 4 * 128 * 128
    peak = 2 * multiply_adds * chip.cores * chip.clock_hz
    assert chip.peak_flops_per_s["bfloat16"] == pytest.approx(peak, rel=0.005)
    assert chip.default_scoped_vmem_bytes <= chip.vmem_bytes


def test_a_dtype_without_a_rate_gets_the_fastest() -> None:
    assert chips.peak_flops_per_s(chips.V5E, "float16") == max(chips.V5E.peak_flops_per_s.values())


def test_the_environment_asks_for_cycles_only_with_a_folder() -> None:
    plain = aot.environment(None, bundles=True)["LIBTPU_INIT_ARGS"]
    full = aot.environment("/d", bundles=True)["LIBTPU_INIT_ARGS"]
    counted = aot.environment("/d", bundles=True, cycles=False)["LIBTPU_INIT_ARGS"]
    assert "dump" not in plain
    assert "static_llo_profile_to=/d" in full and "--xla_jf_dump_to=/d" in full
    assert "static_llo_profile_to" not in counted and "--xla_jf_dump_to=/d" in counted


def test_an_error_is_condensed_to_its_meaning() -> None:
    text = (
        "INTERNAL: Mosaic failed to compile TPU kernel: E2003: Unaligned: index in dimension 0\n"
        "See https://openxla.org/xla/errors/error_2003 for more details.\n\nPlease report a bug at: somewhere\n"
        '  %4 = custom-call(%a), metadata={op_name="x" stack={1}}, backend_config={"body":"' + "QUJD" * 100 + '"}\n'
    )
    message, evidence = errortext.condense(text)
    assert message == "E2003: Unaligned: index in dimension 0"
    assert evidence.splitlines() == [text.splitlines()[0], "  %4 = custom-call(%a)"]


def test_evidence_stays_below_its_cap() -> None:
    assert len(errortext.condense("é" * 10_000)[1].encode()) <= errortext.EVIDENCE_BYTES
