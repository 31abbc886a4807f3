"""The text of a Kineto trace, laid out as PyTorch 2 writes it, to be filled by `made_traces`."""

HEADER = """{{
  "schemaVersion": 1,
  "deviceProperties": [
    {{
      "id": 0, "name": "NVIDIA A100-SXM4-40GB", "totalGlobalMem": 42297524224,
      "computeMajor": 8, "computeMinor": 0, "numSms": 108, "warpSize": 32
    }}
  ],
  "distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": {num_ranks}, "pg_count": 1}},
  "record_shapes": 1,
  "traceEvents": [
"""
NAMED = '  {"name": "%s", "ph": "M", "ts": %.3f, "pid": %d, "tid": %d, "args": {"name": "%s"}},\n'
LAST = """  {{
    "ph": "X", "cat": "Trace", "ts": {start:.3f}, "dur": {length:.3f},
    "pid": "Spans", "tid": "PyTorch Profiler",
    "name": "PyTorch Profiler (0)", "args": {{"Op count": 0}}
  }}
  ],
  "traceName": "rank{rank}.json",
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1700000000000000000
}}"""
ON_CPU = """  {
    "ph": "X", "cat": "%s", "name": "%s", "pid": %d, "tid": %d,
    "ts": %.3f, "dur": %.3f,
    "args": {
      "External id": %d,"Record function id": %d, %s"Ev Idx": %d
    }
  },
"""
CALL = """  {
    "ph": "X", "cat": "cuda_runtime", "name": "%s", "pid": %d, "tid": %d,
    "ts": %.3f, "dur": %.3f,
    "args": {
      "External id": %d, "cbid": %d, "correlation": %d
    }
  },
"""
ON_GPU = """  {
    "ph": "X", "cat": "%s", "name": "%s", "pid": 0, "tid": %d,
    "ts": %.3f, "dur": %.3f,
    "args": {
      "External id": %d,      %s"device": 0, "context": 1,      "stream": %d, "correlation": %d,      %s
    }
  },
"""
ARROW = """  {
    "ph": "%s", "id": %d, "pid": %d, "tid": %d, "ts": %.3f,
    "cat": "%s", "name": "%s"%s
  },
"""
SHAPE = (
    '"registers per thread": %d,      "shared memory": %d,      "blocks per SM": %.6f,      "warps per SM": %.6f,      '
)
GRID = '"grid": [%d, 1, 1],      "block": [%d, 1, 1],      "est. achieved occupancy %%": %d'
NCCL_ARGS = (
    '"Collective name": "%s", "In msg nelems": %d, "Out msg nelems": %d, "Group size": %d, "dtype": "Float", '
    '"In split size": "[]", "Out split size": "[]", "Process Group Name": "0", '
    '"Process Group Description": "default_pg", "Process Group Ranks": "%s", "Seq": %d'
)
DIMS = (
    '"Concrete Inputs": ["", "", "%d"], "Input type": ["float", "float", "Scalar"], '
    '"Input Dims": [[%d, %d], [%d], []], '
)

OPERATORS = (
    "mul add sub div relu sigmoid tanh exp log sqrt pow where clamp gelu dropout sum mean max cumsum softmax "
    "index_select index_add gather scatter_add embedding mm addmm bmm matmul linear cat copy fill clone norm"
)
INNER_OPERATORS = "empty empty_strided as_strided view reshape resize_ result_type slice narrow expand to _to_copy"
FUNCTORS = "Mul Add Div Threshold Clamp Sigmoid Tanh Exp Pow CompareEq BitwiseAnd Fill Copy Where Gelu"
VECTORIZED = (
    "void at::native::vectorized_elementwise_kernel<{width}, at::native::BinaryFunctor<float, float, float, "
    "at::native::binary_internal::{functor}Functor<float> >, at::detail::Array<char*, {count}> >(int, "
    "at::native::BinaryFunctor<float, float, float, at::native::binary_internal::{functor}Functor<float> >, "
    "at::detail::Array<char*, {count}>)"
)
REDUCE = (
    "void at::native::reduce_kernel<512, {count}, at::native::ReduceOp<float, at::native::func_wrapper_t<float, "
    "at::native::{functor}Functor<float> >, unsigned int, float, 4> >(at::native::ReduceOp<float, float>)"
)


def kernel_names() -> list[str]:
    """About 100 names of compute kernels of every kind that a graph neural network launches."""
    fills = [
        {"width": width, "functor": functor, "count": 2 + width // 2}
        for functor in FUNCTORS.split()
        for width in (2, 4)
    ]
    tiles = [f"{rows}x{columns}_{depth}" for rows in (64, 128, 256) for columns in (32, 64, 128) for depth in (16, 32)]
    return [
        *(VECTORIZED.format(**fill) for fill in fills),
        *(REDUCE.format(**fill) for fill in fills),
        *(f"ampere_sgemm_{tile}x4_nn" for tile in tiles),
        *(f"void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_{tile}x4_nt_align4>(Params)" for tile in tiles),
        "void cusparse::csrmm_v3_partition_kernel<std::integral_constant<bool, false>, 256, 32, int>(int)",
        "void dgl::aten::cuda::SpMMCsrKernel<long, float, dgl::aten::cuda::binary::CopyLhs<float> >(float const*)",
        "void at::native::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>(long)",
    ]
