"""Names of operators and kernels as PyTorch, DGL, PyG, NVIDIA's and AMD's libraries and Triton have written them."""

import time
from pathlib import Path

import pytest

from anatomy.errors import StudyError
from anatomy.traces.naming import (
    Category,
    category_of,
    collective_kind,
    is_communication,
    is_transfer,
    naming_for,
)

COMMUNICATION_KERNELS = {
    # NCCL, from 2.4 to 2.28, and RCCL and MSCCL
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)": "all_reduce",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)": "all_reduce",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": "send_recv",
    "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": "broadcast",
    "ncclKernelAllGather(ncclDevComm*)": "all_gather",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)": "all_reduce",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "reduce_scatter",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_gather",
    "ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "reduce",
    "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)": "other",
    "void ncclDevKernel_Generic_4<false>(ncclDevKernelArgsStorage<4096ul>)": "other",
    "nccldevkernel_sendrecv(nccldevkernelargsstorage<4096ul>)": "send_recv",
    "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f32(ncclSymkDevWorkArgs4K)": "all_reduce",
    "_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE": "all_reduce",
    "mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)": "other",
    # PyTorch's symmetric memory, vLLM
    "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<float, 16, 2>(float**)": "all_reduce",
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)": "all_reduce",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)": "all_reduce",
}

COMMUNICATION_EVENTS = {
    "gloo:all_reduce": "all_reduce",
    "gloo:all_to_all": "all_to_all",
    "gloo:gather": "gather",
    "mpi:broadcast": "broadcast",
    "c10d::allreduce_": "all_reduce",
    "c10d::alltoall_base_": "all_to_all",
    "c10d::_allgather_base_": "all_gather",
    "c10d::_reduce_scatter_base_": "reduce_scatter",
    "c10d::scatter_": "scatter",
    "c10d::gather_": "gather",
    "c10d::barrier": "barrier",
    "c10d::recv_": "send_recv",
    "_c10d_functional::all_gather_into_tensor": "all_gather",
    "nccl:all_to_all": "all_to_all",
    "nccl:_all_gather_base": "all_gather",
    "nccl:recv 0<-1": "send_recv",
    "record_param_comms": "other",
}


@pytest.mark.parametrize(("name", "kind"), (COMMUNICATION_KERNELS | COMMUNICATION_EVENTS).items())
def test_communication_of_every_generation(name, kind):
    assert is_communication(name)
    assert category_of(name) == Category.COMMUNICATION
    assert collective_kind(name) == kind


@pytest.mark.parametrize(
    "name",
    [
        "aten::gather",
        "aten::scatter_add_",
        "GatherBackward0",
        "All2All_Pooled_Req",  # a function of TorchRec within which communication happens, and other things
        "torch.distributed.ddp.reducer::copy_bucket_to_grad",
        "triton_poi_fused_all_reduce_0",
        "triton_poi_fused_all_to_all_single_clone_permute_view_0",
        "void SyncClone<float>(float*)",  # s-y-NCCL-o-n-e
        "TruncClampBackward",
        "void my_kernel<float>(ncclDevComm*)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(at::native::ReduceOp<float>)",
        "void cub::DeviceReduceKernel<float>(float*)",
        "Memcpy PtoP (Device -> Device)",
    ],
)
def test_what_only_sounds_like_communication(name):
    assert not is_communication(name)
    assert category_of(name) != Category.COMMUNICATION


NAMES = [
    tuple(line.split(maxsplit=1))
    for line in (Path(__file__).parents[1] / "data" / "operator_names.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
"""Category and name, as libraries have written them."""


@pytest.mark.parametrize(("category", "name"), [*NAMES, ("unclassified", "")])
def test_names_fall_into_their_category(category, name):
    assert category_of(name) == category


@pytest.mark.parametrize(
    ("name", "crosses"),
    [
        ("Memcpy HtoD (Pageable -> Device)", True),
        ("Memcpy DtoH (Device -> Pinned)", True),
        ("Memcpy PtoP (Device -> Device)", True),
        ("Memcpy DtoD (Device -> Device)", False),
        ("CopyDeviceToDevice", False),
    ],
)
def test_a_copy_within_a_gpu_does_not_cross_its_border(name, crosses):
    assert is_transfer(name) == crosses


class TestRulesOfAUser:
    def test_come_before_the_built_in_ones_and_the_first_of_them_first(self):
        naming = naming_for((("sparse", r"^void my_\w+<"), ("dense", "MY_|gspmm")))
        assert naming.category_of("void my_kernel<int>(int)") == Category.SPARSE
        assert naming.category_of("void other::my_kernel(int)") == Category.DENSE
        assert naming.category_of("GSpMM") == Category.DENSE
        assert naming.category_of("aten::mm") == Category.DENSE
        assert naming.category_of("nobody's") == Category.UNCLASSIFIED

    def test_do_not_decide_what_is_communication(self):
        naming = naming_for((("communication", "my_exchange"), ("copy", "nccl")))
        assert naming.category_of("my_exchange") == Category.COMMUNICATION
        assert not is_communication("my_exchange")
        assert naming.category_of("ncclDevKernel_Generic") == Category.COPY
        assert is_communication("ncclDevKernel_Generic")

    def test_without_any_the_table_decides(self):
        naming = naming_for(())
        assert [naming.category_of(name) for _, name in NAMES] == [category for category, _ in NAMES]

    @pytest.mark.parametrize(
        ("rule", "found", "expected"),
        [
            (("sparce", "spmm"), "category 'sparce'", "expected one of sparse, sampling, dense"),
            (("SPARSE", "spmm"), "category 'SPARSE'", "expected one of sparse"),
            (("sparse", "spmm("), r"pattern 'spmm\('", "expected a regular expression: .* put a backslash"),
            (("sparse", ""), "an empty pattern", "expected a regular expression"),
        ],
    )
    def test_a_bad_one_is_named(self, rule, found, expected):
        with pytest.raises(StudyError, match=rf"operator_rules, rule 2: found {found}.*{expected}"):
            naming_for((("dense", "gemm"), rule))


def test_thousands_of_long_names_take_milliseconds():
    # 5,000 names of 500 characters take 20 ms here; a slow machine under load gets fifty times as long.
    name = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, "
    names = [
        (name + "at::native::binary_internal::MulFunctor<float> >, " * 8)[:490] + str(10**9 + i) for i in range(5000)
    ]
    start = time.perf_counter()
    assert {category_of(name) for name in names} == {Category.ELEMENTWISE}
    assert time.perf_counter() - start < 1
