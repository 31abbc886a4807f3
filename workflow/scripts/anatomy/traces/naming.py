"""What the name of an event says: one readable table from names of operators and GPU kernels to categories.

CPU operators carry PyTorch's or DGL's names, GPU kernels those of the library that compiled them. To classify a name
that is still unclassified, add its pattern to `RULES`.
"""

import re
from enum import StrEnum
from functools import lru_cache

STEP_PREFIX = "ProfilerStep#"


class Category(StrEnum):
    """Kinds of operators."""

    SPARSE = "sparse"
    SAMPLING = "sampling"
    DENSE = "dense"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    COPY = "copy"
    COMMUNICATION = "communication"
    UNCLASSIFIED = "unclassified"


RULES: tuple[tuple[Category, str], ...] = (
    # NCCL's kernels were ncclKernel_AllReduce_…, ncclKernelAllReduce… and are ncclDevKernel_AllReduce_…
    (Category.COMMUNICATION, r"nccl rccl ^gloo: ^mpi: ^c10d:: c10d_functional record_param_comms nvshmem multimem"),
    # DGL (CSRRowWiseSample…, hash maps of to_block) and PyG (pyg_lib, torch_sparse).
    (Category.SAMPLING, r"row_?wise_?sample row_?wise_?pick neighbor_?sample hetero_?sample sample_?neighbors"),
    (Category.SAMPLING, r"random_?walk uniform_?sample fused_?sample pyg::.*sampl hash_?map to_?block"),
    # DGL (GSpMM, GSDDMM, SpMMCsr…, EdgeSoftmax), cuSPARSE, torch_scatter, and PyTorch's gather, scatter and indexing.
    (Category.SPARSE, r"spmm sddmm spmv cusparse csr coo_?reduce edge_?softmax segment_?\w* gather_?mm scatter"),
    (Category.SPARSE, r"gather index_?select index_?add index_?put index_elementwise indexing embedding"),
    (Category.REDUCTION, r"batch_?norm layer_?norm bn_[bf]w cudnn::bn"),
    # cuBLAS, CUTLASS, cuDNN, oneDNN, and Triton's matrix products.
    (Category.DENSE, r"gemm gemv cublas cutlass xmma nvjet cudnn convolve winograd mkldnn dot_kernel triton_mm"),
    (Category.DENSE, r"triton_tem"),
    # PyTorch's templates for element-wise kernels carry the operation deep inside their name.
    (Category.COPY, r"memcpy memset copy_kernel copy_device_to_device cat_?array fill_?functor ^detach"),
    (Category.REDUCTION, r"reduce_kernel softmax triton_red triton_per nll_?loss cross_?entropy device_?scan"),
    (Category.REDUCTION, r"device_?reduce device_?segmented device_?radix device_?select radix_?sort cub:: thrust"),
    (Category.ELEMENTWISE, r"multi_tensor foreach elementwise_kernel triton_poi fused_adam fused_dropout"),
    (Category.ELEMENTWISE, r"distribution_ AccumulateGrad"),
)
"""Patterns for names of any origin: first match wins, anywhere in the name, ignoring case."""

ATEN_RULES: tuple[tuple[Category, str], ...] = (
    (Category.SAMPLING, r"unique unique2 randperm randint multinomial"),
    (Category.SPARSE, r"index scatter gather embedding sparse take masked_select segment_reduce"),
    (Category.DENSE, r"mm addmm bmm baddbmm matmul linear conv convolution dot mv addmv tensordot einsum"),
    (Category.DENSE, r"scaled_dot_product"),
    (Category.REDUCTION, r"sum mean max min amax amin argmax argmin prod norm linalg_norm linalg_vector_norm var"),
    (Category.REDUCTION, r"std all any cumsum sort argsort topk bincount count_nonzero nonzero logsumexp softmax"),
    (Category.REDUCTION, r"log_softmax searchsorted nll_loss cross_entropy_loss batch_norm native_batch_norm"),
    (Category.REDUCTION, r"layer_norm native_layer_norm histc max_pool adaptive_avg_pool avg_pool"),
    (Category.COPY, r"copy to clone contiguous cat concat type_as stack fill zero zeros ones full new empty resize"),
    (Category.COPY, r"set pin pin_memory arange"),
    # Views move nothing, but they take their time.
    (Category.COPY, r"view reshape unsafe_view t transpose permute select slice narrow split chunk unbind"),
    (Category.COPY, r"as_strided expand squeeze unsqueeze detach lift alias resolve flatten unflatten repeat pad"),
    (Category.COPY, r"flip roll tile constant_pad_nd item local_scalar_dense is_nonzero is_pinned record_stream"),
    (Category.COPY, r"result_type scalar_tensor lift_fresh"),
    (Category.ELEMENTWISE, r"add sub rsub mul div neg abs exp log log1p sqrt rsqrt pow reciprocal sign clamp floor"),
    (Category.ELEMENTWISE, r"ceil round relu leaky_relu elu gelu silu sigmoid tanh threshold hardtanh dropout"),
    (Category.ELEMENTWISE, r"native_dropout where masked gt ge lt le eq ne logical bitwise isnan isfinite isinf"),
    (Category.ELEMENTWISE, r"lerp fused square erf cos sin foreach bernoulli uniform normal random rand randn"),
    (Category.ELEMENTWISE, r"exponential remainder fmod floor_divide maximum minimum addcmul addcdiv clip isin"),
    (Category.ELEMENTWISE, r"divide logit nan_to_num"),
)
"""Words with which PyTorch's own operators begin after `aten::` and underscores, asked where `RULES` say nothing."""

COLLECTIVES: tuple[tuple[str, str], ...] = (
    ("reduce_scatter", r"reduce_?scatter"),
    ("all_reduce", r"all_?reduce"),
    ("all_to_all", r"all_?to_?all"),
    ("all_gather", r"all_?gather"),
    ("barrier", r"barrier"),
    ("broadcast", r"broadcast"),
    ("send_recv", r"send|recv"),
)
"""Kinds of communication; what matches none is `other`."""

_PATTERNS = tuple((category, re.compile("|".join(words.split()), re.IGNORECASE)) for category, words in RULES)
_ATEN = tuple((category, re.compile(rf"(?:{'|'.join(words.split())})(?![a-z])")) for category, words in ATEN_RULES)
_COMMUNICATION = _PATTERNS[0][1]
_AUTOGRAD = re.compile(r"(?:autograd::engine::evaluate_function: )?(\w+?)Backward\d*")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@lru_cache(maxsize=65536)
def category_of(name: str) -> Category:
    """The category of an operator or GPU kernel. An autograd node counts as the operator whose gradient it computes."""
    for category, pattern in _PATTERNS:
        if pattern.search(name):
            return category
    node = _AUTOGRAD.fullmatch(name)
    operator = _HUMP.sub("_", node[1]).lower() if node else name.removeprefix("aten::")
    if operator != name:
        for category, pattern in _ATEN:
            if pattern.match(operator.lstrip("_")):
                return category
    return Category.UNCLASSIFIED


@lru_cache(maxsize=65536)
def is_communication(name: str) -> bool:
    """Whether an event is communication or its launch, by its name."""
    return _COMMUNICATION.search(name) is not None


@lru_cache(maxsize=4096)
def collective_kind(name: str) -> str:
    """The kind of communication that a kernel's, an operator's or a collective's own name states."""
    return next((kind for kind, pattern in COLLECTIVES if re.search(pattern, name, re.IGNORECASE)), "other")


def is_transfer(name: str) -> bool:
    """Whether a GPU copy crosses the device's border; a copy within the device is work of the device."""
    return "DtoD" not in name
