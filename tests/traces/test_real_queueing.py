"""Kernels, delays and idle GPUs of real jobs; what is expected is written as it follows from the JSON."""

import pytest

from anatomy.traces.options import ParseOptions
from anatomy.traces.rank.activity import blocking_operators, find_activity
from anatomy.traces.rank.annotations import PhaseTimeline, find_phases
from anatomy.traces.rank.queueing import idle_causes, queueing
from anatomy.traces.reading.trace import read_trace

pytestmark = pytest.mark.shared_data


def idle_in(trace, start_us, end_us):
    """Time by cause within a window of a real trace, in us."""
    events, activity = trace
    window = {0: (round(start_us * 1000), round(end_us * 1000))}
    idle = idle_causes(events, window, activity)
    return {name.removesuffix("_ns"): values[0] / 1000 for name, values in idle.items() if name != "step" and values[0]}


@pytest.fixture(scope="module")
def dlrm(shared_data):
    """Rank 0 of eight; time stamps are whole microseconds."""
    return read(next((shared_data / "traces" / "dlrm-8rank").glob("worker0_*")))


@pytest.fixture(scope="module")
def nccl_data(shared_data):
    """Rank 0 of two; nanoseconds since `baseTimeNanoseconds`, 1711964646000000000."""
    return read(shared_data / "traces" / "hta" / "nccl_data.json.gz")


def read(path):
    """Events and activity."""
    events = read_trace(path, ParseOptions()).events
    phases = find_phases(events)
    return events, find_activity(events, blocking_operators(events, phases), PhaseTimeline(phases), gpu=True)


class TestDlrm:
    """ProfilerStep#10 has ts 1694128201426674 and dur 14455."""

    STEP = 1694128201426674

    def test_streams(self, dlrm):
        found = queueing(dlrm[0], {10: (self.STEP * 1000, (self.STEP + 14455) * 1000)})
        # Kernels by 'stream' with ts in the step and without "nccl" in the name; sums of 'dur'.
        assert found["stream"].tolist() == [7, 24]
        assert found["kernels"].tolist() == [220, 17]
        assert found["kernel_ns"].tolist() == [964_000, 70_000]
        assert found["mean_kernel_ns"].tolist() == [round(964_000 / 220), round(70_000 / 17)]
        assert found["short_kernels"].tolist() == [205, 17]
        # Of stream 24, ts less the ts of cudaLaunchKernel with the same 'correlation', sorted:
        delays = [6, 6, 6, 6, 6, 6, 6, 7, 7, 7, 7, 7, 8, 9, 12, 12, 13]
        assert found["launched"].tolist() == [220, 17]
        assert found["delay_mean_ns"].tolist()[1] == round(sum(delays) * 1000 / 17)
        assert found["delay_median_ns"].tolist()[1] == delays[8] * 1000
        # 0.95 * 16 = 15.2
        assert found["delay_p95_ns"].tolist()[1] == 800 * delays[15] + 200 * delays[16]

    def test_delay_of_one_kernel(self, dlrm):
        # permute_2D_lengths_kernel: ts …428827, correlation 40961, which cudaLaunchKernel has at …428815
        found = queueing(dlrm[0], {0: (1694128201428827_000, 1694128201428828_000)})
        assert found["stream"].tolist() == [24]
        assert found["delay_mean_ns"].tolist() == [12_000]

    def test_a_gap_that_the_host_makes(self, dlrm):
        # Nothing runs from …432734 to …433054, when a kernel starts that was launched at …433042.
        found = idle_in(dlrm, 1694128201432734, 1694128201433054)
        assert found == {"not_computing": 320, "host_bound": 308, "launched": 12}

    def test_a_gap_after_a_synchronisation(self, dlrm):
        # Nothing runs from …429089 to …429323; the next kernel was launched at …429310 and the last work before at
        # …429073, by a cudaMemcpyAsync with dur 23 whose copy to pageable memory ran from …429088 to …429089. A
        # cudaStreamSynchronize with dur 3 followed.
        found = idle_in(dlrm, 1694128201429089, 1694128201429323)
        assert found == {
            "not_computing": 234,
            "synchronisation": 26,
            "host_bound": 310 - 89 - 26,
            "launched": 323 - 310,
        }

    def test_before_the_first_work_of_the_trace(self, dlrm):
        # The first is at …428006.
        found = idle_in(dlrm, self.STEP, 1694128201428006)
        assert found["not_computing"] == 1332

    def test_the_first_all_to_all(self, dlrm):
        # ncclKernel_SendRecv: ts …429795, dur 2146; six kernels of other streams run meanwhile, with these dur
        found = idle_in(dlrm, 1694128201429795, 1694128201429795 + 2146)
        exposed = 2146 - (4 + 3 + 3 + 5 + 4 + 6)
        assert found == {"not_computing": exposed, "communication_bound": exposed}


class TestNcclData:
    """ProfilerStep#4 has ts 4458676416788.066 and dur 222442.191."""

    def test_streams(self, nccl_data):
        start = 1711964646000000000 + 4458676416788066
        found = queueing(nccl_data[0], {4: (start, start + 222442191)})
        # 893 kernels without "nccl" in the name, 'dur' 38506.406 in sum, 386 below 10, on stream 7
        row = {name: values.item() for name, values in found.items()}
        assert (row["stream"], row["kernels"], row["kernel_ns"], row["short_kernels"]) == (7, 893, 38_506_406, 386)
        assert row["mean_kernel_ns"] == round(38_506_406 / 893)
        assert row["launched"] == 893

    def test_delay_of_one_kernel(self, nccl_data):
        # CatArrayBatchedCopy_aligned16_contig: ts 4458676422880.181, correlation 19812, which cudaLaunchKernel has at
        # 4458676422851.783
        start = 1711964646000000000 + 4458676422880181
        found = queueing(nccl_data[0], {0: (start, start + 1)})
        assert found["delay_mean_ns"].tolist() == [880_181 - 851_783]

    def test_the_longest_gap(self, nccl_data):
        # From 4458676425946.603 to 4458676441665.209, when a copy starts that was launched at 4458676441629.525
        start = 1711964646000000000 + 4458676425946603
        found = idle_causes(nccl_data[0], {0: (start, start + 15_718_606)}, nccl_data[1])
        assert found["host_bound_ns"].tolist() == [441_629_525 - 425_946_603]
        assert found["launched_ns"].tolist() == [441_665_209 - 441_629_525]
        assert found["not_computing_ns"].tolist() == [15_718_606]

    def test_a_gap_with_eight_synchronisations(self, nccl_data):
        # From 4458676638649.605 to 4458676644934.992, when a kernel starts that was launched at 4458676644915.722. The
        # launch before is at 4458676638408.790; since then there are eight cudaEventSynchronize with these dur, in ns:
        waits = [8894, 3105, 2470, 2757, 2668, 2055, 2451, 1967]
        start = 1711964646000000000 + 4458676638649605
        found = idle_causes(nccl_data[0], {0: (start, start + 6_285_387)}, nccl_data[1])
        assert found["synchronisation_ns"].tolist() == [sum(waits)]
        assert found["host_bound_ns"].tolist() == [644_915_722 - 638_649_605 - sum(waits)]
        assert found["launched_ns"].tolist() == [644_934_992 - 644_915_722]
