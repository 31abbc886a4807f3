"""Names of operators and kernels as PyTorch, DGL, PyG, NVIDIA's libraries and Triton have written them."""

import pytest

from anatomy.traces.naming import Category, category_of, collective_kind, is_communication

NCCL_KERNELS = {
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)": "all_reduce",
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)": "all_reduce",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": "send_recv",
    "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": "broadcast",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)": "all_reduce",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "reduce_scatter",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_gather",
    "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)": "other",
    "nccldevkernel_sendrecv(nccldevkernelargsstorage<4096ul>)": "send_recv",
}


@pytest.mark.parametrize(("name", "kind"), NCCL_KERNELS.items())
def test_nccl_kernels_of_every_generation_are_communication(name, kind):
    assert is_communication(name)
    assert category_of(name) == Category.COMMUNICATION
    assert collective_kind(name) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gloo:all_reduce", "all_reduce"),
        ("gloo:all_to_all", "all_to_all"),
        ("c10d::allreduce_", "all_reduce"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("c10d::_allgather_base_", "all_gather"),
        ("c10d::barrier", "barrier"),
        ("c10d::recv_", "send_recv"),
    ],
)
def test_gloo_and_c10d_events_are_communication(name, kind):
    assert is_communication(name)
    assert collective_kind(name) == kind


NAMES = {
    Category.SPARSE: [
        "GSpMM",
        "GSpMMBackward",
        "autograd::engine::evaluate_function: GSpMMBackward",
        "void dgl::aten::cuda::SpMMCsrKernel<float, int, float, dgl::aten::cuda::binary::CopyLhs<float> >(int)",
        "EdgeSoftmax",
        "void cusparse::csrmm_v2_kernel<int, float>(cusparse::KernelCoeffs<float>)",
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned int, 2>(float*)",
        "aten::index_select",
        "aten::scatter_add_",
        "IndexSelectBackward0",
        "torch_scatter::segment_csr",
    ],
    Category.SAMPLING: [
        "void dgl::aten::impl::_CSRRowWiseSampleUniformKernel<long, 4>(unsigned long, long)",
        "torch_sparse::neighbor_sample",
        "pyg::hetero_neighbor_sample",
        "aten::randperm",
        "aten::_unique2",
    ],
    Category.DENSE: [
        "aten::mm",
        "aten::addmm",
        "MmBackward0",
        "autograd::engine::evaluate_function: AddmmBackward0",
        "ampere_sgemm_128x64_tn",
        "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4>(Params)",
        "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32",
        "triton_mm_12",
    ],
    Category.ELEMENTWISE: [
        "aten::relu",
        "aten::threshold_backward",
        "aten::add_",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4> >(float)",
        "triton_poi_fused_add_relu_3",
        "torch::autograd::AccumulateGrad",
    ],
    Category.REDUCTION: [
        "aten::sum",
        "SumBackward0",
        "aten::_log_softmax",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(at::native::ReduceOp<float>)",
        "triton_red_fused_sum_1",
        "aten::topk",
    ],
    Category.COPY: [
        "aten::copy_",
        "aten::to",
        "aten::t",
        "Memcpy HtoD (Pinned -> Device)",
        "Memset (Device)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int)",
        "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>",
        "detach",
    ],
    Category.UNCLASSIFIED: ["forward", "void my_kernel(int)", "aten::unheard_of", "MyFunctionBackward"],
}


@pytest.mark.parametrize(
    ("category", "name"), [(category, name) for category, names in NAMES.items() for name in names]
)
def test_names_fall_into_their_category(category, name):
    assert category_of(name) == category
