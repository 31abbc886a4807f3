"""What the name of an event says: one readable table from names of operators and GPU kernels to categories.

CPU operators carry PyTorch's or DGL's names, GPU kernels those of the library that compiled them. What the table does
not know is unclassified: add a rule to `RULES`, or to `operator_rules` in the configuration.
"""

import re
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from anatomy.errors import StudyError

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


class Rule(NamedTuple):
    """What is called one of `words` is of the category; where `made_for` is given, only if it is made for one of those.

    Both are words separated by blanks, found anywhere, or only at the beginning after `^`. Case does not count; a word
    with underscores is also found without any of them. `words` are looked for in a name without its return type,
    template arguments and parameters, which name what a kernel works on; `made_for` in the whole name.
    """

    category: Category
    words: str
    made_for: str = ""


RULES: tuple[Rule, ...] = (
    # Triton's kernels from PyTorch's compiler: their first word says what they are; the rest lists all operators fused
    # into them, also collectives next to them (triton_poi_fused_all_reduce_0).
    Rule(Category.DENSE, "^triton_tem_fused ^triton_mm ^triton_bmm ^triton_addmm ^triton_convolution"),
    Rule(Category.REDUCTION, "^triton_red_fused ^triton_per_fused ^triton_spl_fused"),
    Rule(Category.ELEMENTWISE, "^triton_poi_fused ^triton_for_fused"),
    # NCCL's and RCCL's kernels have begun with ncclKernel_AllReduce, ncclAllReduce…Kernel, ncclDevKernel_AllReduce and
    # ncclSymkDevKernel_AllReduce; the word itself is also within SyncClone. Then MSCCL, NVSHMEM, and the all-reduces of
    # PyTorch, TensorRT and vLLM, and the operators and annotations of torch.distributed.
    Rule(Category.COMMUNICATION, "^nccl nccl_kernel nccl_dev_kernel nccl_symk_dev_kernel ^rccl ^msccl nvshmem"),
    Rule(Category.COMMUNICATION, "::multimem_ ^multimem_ shot_all_reduce all_reduce_kernel cross_device_reduce"),
    Rule(
        Category.COMMUNICATION,
        "^gloo: ^mpi: ^collective: ^c10d:: c10d_functional:: ^symm_mem:: ^record_param_comms deep_ep::",
    ),
    # Sampling and what makes a block of it. DGL: CSRRowWiseSampleUniform, hash maps of to_block, GraphBolt; PyG:
    # pyg-lib, torch-sparse, torch-cluster; WholeGraph.
    Rule(Category.SAMPLING, "row_wise_sample row_wise_layer_sample row_wise_pick row_wise_one_hop row_wise_degree"),
    Rule(Category.SAMPLING, "neighbor_sample hetero_sample sample_neighbors sample_adj hgt_sample saint_subgraph"),
    Rule(Category.SAMPLING, "random_walk uniform_sampl negative_sampl rejection_sampl sample_without_replacement"),
    Rule(Category.SAMPLING, "hash_map to_block map_vertex_ids map_edge_ids unique_and_compact index_select_csc"),
    # Sparse matrices. DGL: GSpMM, SpMMCsrKernel, GSDDMM, SDDMMCooKernel, EdgeSoftmax; PyG: torch-scatter, torch-sparse;
    # cuSPARSE, rocSPARSE. Products with one dense matrix per segment are dense.
    Rule(Category.DENSE, "segment_mm segment_matmul grouped_matmul grouped_mm grouped_gemm fbgemm_linear fbgemm_pack"),
    Rule(Category.SPARSE, "spmm sddmm spmv spgemm cusparse rocsparse csr coo_reduce edge_softmax ind2ptr ptr2ind"),
    # Names that hold words of the next rules: selection is no gathering, a sort by segment no segment reduction.
    Rule(Category.REDUCTION, "top_k device_segmented segmented_sort segmented_reduce cumsum"),
    Rule(Category.ELEMENTWISE, "rotary_emb quantize fp8_rowwise _qparam"),
    # Gathering, scattering, indexing and embedding of PyTorch, and FBGEMM's sparse features and tables.
    Rule(Category.SPARSE, "gather scatter segment index_select index_add index_put index_copy index_fill index_func"),
    Rule(
        Category.SPARSE, "index_elementwise index_kernel indexing embedding split_lookup compute_grad_weight coalesce"
    ),
    Rule(Category.SPARSE, "fbgemm permute_pooled_embs bounds_check_indices linearize_index jagged dgl::"),
    # Normalisation, softmax, loss and pooling, of PyTorch and cuDNN.
    Rule(Category.REDUCTION, "batch_norm layer_norm group_norm instance_norm rms_norm lp_norm ::bn_fw ::bn_bw welford"),
    Rule(Category.REDUCTION, "rowwise_moments gamma_beta_backward compute_internal_gradients softmax"),
    Rule(Category.REDUCTION, "nll_loss nll_criterion cross_entropy max_pool avg_pool ::pooling_"),
    # Copies, fills and changes of layout. A kernel for one operation per element may be made for no more than that.
    Rule(Category.COPY, "memcpy memset copy_buffer fill_buffer cat_array copy_kernel copy_device_to_device ^detach"),
    Rule(Category.COPY, "nchw_to_nhwc nhwc_to_nchw ^transpose ::transpose transpose_kernel triu_tril im2col col2im"),
    Rule(
        Category.COPY, "^compute_cuda_kernel ::compute_cuda_kernel roll_cuda flip_cuda chunk_cat split_with_sizes_copy"
    ),
    Rule(Category.COPY, "copy_bucket copy_backwards copy_slices"),
    Rule(Category.COPY, "elementwise pointwise", "fill_functor fill_op copy_kernel_cuda arange linspace"),
    Rule(Category.COPY, "multi_tensor", "copy_functor copy< zero_functor"),
    # Matrix products, convolutions and attention: cuBLAS, CUTLASS, cuDNN, Tensile, MIOpen, oneDNN, FlashAttention.
    Rule(Category.ELEMENTWISE, "scale_packed_tensor op_generic_tensor ^scal_kernel axpy"),
    Rule(Category.DENSE, "gemm gemv cublas cutlass xmma nvjet cijk_ tensile split_k_reduce epilogue:: dot_kernel"),
    Rule(Category.DENSE, "reduce_1block cudnn convol winograd wgrad dgrad fprop miopen mkldnn_conv mkldnn_linear"),
    Rule(Category.DENSE, "matmul flash_fwd flash_bwd flash_attn fmha attention_kernel paged_attention lstm gru_cell"),
    # PyTorch's and Thrust's general kernels, each made for one function.
    Rule(Category.REDUCTION, "multi_tensor", "lp_norm l2_norm"),
    Rule(Category.ELEMENTWISE, "elementwise pointwise multi_tensor fused_adam fused_sgd fused_dropout"),
    Rule(Category.ELEMENTWISE, "accumulate_grad reducer::mul_out"),
    Rule(Category.COPY, "_kernel_agent static_kernel transform_kernel", "uninitialized_fill uninitialized_copy"),
    Rule(Category.ELEMENTWISE, "_kernel_agent static_kernel transform_kernel", "parallel_for for_each transform"),
    # Reductions, scans, sorts and searches: what remains of CUB, Thrust and rocPRIM.
    Rule(Category.REDUCTION, "reduce_kernel cub:: thrust:: rocprim:: device_scan device_reduce device_select radix"),
    Rule(Category.REDUCTION, "device_merge merge_sort bitonic sort_key_value histogram scan_innermost scan_outer"),
    Rule(Category.REDUCTION, "searchsorted lower_bound upper_bound"),
    # Names that say nothing but what they are made for.
    Rule(Category.SPARSE, "cpp_node", "split_lookup permute_pooled_embs embedding"),
    Rule(Category.DENSE, "enable_if device_kernel", "gemv gemm cutlass"),
)
"""Rules for names of any origin: the first one that holds decides."""

ATEN_RULES: tuple[tuple[Category, str], ...] = (
    (Category.SAMPLING, r"unique unique2 randperm randint multinomial"),
    (Category.SPARSE, r"index scatter gather embedding sparse take masked_select masked_scatter segment_reduce"),
    (Category.SPARSE, r"unsafe_index coalesce to_sparse smm hspmm sspaddmm cslt_sparse_mm"),
    (Category.DENSE, r"mm addmm bmm baddbmm addbmm matmul linear conv convolution dot vdot inner mv addmv addr ger"),
    (Category.DENSE, r"tensordot einsum bilinear scaled_dot_product flash_attention efficient_attention cdist"),
    (Category.DENSE, r"scaled_mm int_mm weight_int4pack_mm slow_conv thnn_conv2d thnn_fused lstm gru rnn"),
    (Category.REDUCTION, r"foreach_norm value_selecting_reduction grad_sum"),
    (Category.REDUCTION, r"sum nansum mean nanmean prod max min amax amin aminmax argmax argmin norm linalg_norm"),
    (Category.REDUCTION, r"linalg_vector_norm var std median mode kthvalue all(?!\d) any cumsum cumprod cummax cummin"),
    (Category.REDUCTION, r"sort argsort msort topk bincount histc histogram count_nonzero nonzero logsumexp"),
    (Category.REDUCTION, r"logcumsumexp softmax log_softmax softmin searchsorted bucketize"),
    (Category.REDUCTION, r"nll_loss nll_loss_nd cross_entropy_loss binary_cross_entropy mse_loss l1_loss kl_div"),
    (Category.REDUCTION, r"smooth_l1_loss huber_loss batch_norm native_batch_norm layer_norm native_layer_norm"),
    (Category.REDUCTION, r"group_norm native_group_norm max_pool adaptive_avg_pool adaptive_max_pool avg_pool"),
    (Category.COPY, r"foreach_copy foreach_zero"),
    (Category.COPY, r"copy to clone contiguous cat concat type_as stack fill zero zeros ones full new empty resize"),
    (Category.COPY, r"set pin pin_memory arange range linspace eye vstack hstack"),
    # Views move nothing, but they take their time.
    (Category.COPY, r"view reshape unsafe_view t numpy_T transpose permute movedim select slice narrow split"),
    (
        Category.COPY,
        r"unsafe_split tensor_split chunk unsafe_chunk unbind diagonal as_strided expand squeeze unsqueeze",
    ),
    (Category.COPY, r"detach lift alias resolve flatten unflatten repeat repeat_interleave pad unfold im2col"),
    (Category.COPY, r"values indices crow_indices col_indices row_indices ccol_indices swapaxes meshgrid rot90"),
    (Category.COPY, r"flip roll tile constant_pad_nd item local_scalar_dense is_nonzero is_pinned record_stream"),
    (
        Category.COPY,
        r"result_type scalar_tensor lift_fresh tril triu broadcast_to broadcast_tensors ravel conj moveaxis",
    ),
    (Category.ELEMENTWISE, r"add sub rsub mul div true_divide neg abs exp exp2 expm1 log log1p log2 log10 sqrt rsqrt"),
    (
        Category.ELEMENTWISE,
        r"pow float_power reciprocal sign sgn clamp clip floor ceil round trunc frac relu leaky_relu",
    ),
    (
        Category.ELEMENTWISE,
        r"prelu rrelu elu celu selu gelu glu silu mish sigmoid log_sigmoid tanh softplus softshrink",
    ),
    (Category.ELEMENTWISE, r"hardtanh hardswish hardsigmoid hardshrink threshold dropout feature_dropout"),
    (Category.ELEMENTWISE, r"native_dropout where masked gt ge lt le eq ne logical bitwise isnan isfinite isinf"),
    (Category.ELEMENTWISE, r"lerp fused square erf erfc erfinv cos sin tan acos asin atan atan2 cosh sinh foreach"),
    (Category.ELEMENTWISE, r"bernoulli uniform normal random rand randn exponential remainder fmod floor_divide"),
    (Category.ELEMENTWISE, r"maximum minimum fmax fmin addcmul addcdiv isin divide multiply subtract logit xlogy"),
    (
        Category.ELEMENTWISE,
        r"nan_to_num amp_foreach logaddexp hypot negative absolute less greater not_equal isclose special",
    ),
)
"""Words with which PyTorch's own operators begin after `aten::` and underscores, asked where `RULES` say nothing."""

COLLECTIVES: tuple[tuple[str, str], ...] = (
    ("reduce_scatter", r"reduce_?scatter"),
    ("all_reduce", r"all_?reduce|cross_?device_?reduce"),
    ("all_to_all", r"all_?to_?all"),
    ("all_gather", r"all_?gather"),
    ("barrier", r"barrier"),
    ("broadcast", r"broadcast"),
    ("send_recv", r"send|recv"),
    ("reduce", r"reduce"),
    ("gather", r"gather"),
    ("scatter", r"scatter"),
)
"""Kinds of communication: the first one whose pattern is found; what matches none is `other`."""

_NOISE = ("(anonymous namespace)::", "<unnamed>::")
_OWN_NAME = re.compile(r"[^<(]*")
_AUTOGRAD = re.compile(r"(?:autograd::engine::evaluate_function: )?(\w+?)Backward(\d*)")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ATEN = tuple((category, re.compile(rf"(?:{'|'.join(words.split())})(?![a-zA-Z])")) for category, words in ATEN_RULES)


def _finder(words: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The spellings of a rule's words in lower case: those found anywhere, and those found at the beginning."""
    spellings = [
        spelling for word in words.lower().split() for spelling in dict.fromkeys((word, word.replace("_", "")))
    ]
    anchored = tuple(spelling.removeprefix("^") for spelling in spellings if spelling.startswith("^"))
    return tuple(spelling for spelling in spellings if not spelling.startswith("^")), anchored


_FINDERS = tuple((rule.category, _finder(rule.words), _finder(rule.made_for)[0]) for rule in RULES)


class Naming:
    """Categories of names: by a user's rules, then by the built-in ones."""

    def __init__(self, rules: tuple[tuple[Category, re.Pattern[str]], ...]) -> None:
        self._rules = rules
        self._known: dict[str, Category] = {}

    def category_of(self, name: str) -> Category:
        """The category of an operator or GPU kernel."""
        category = self._known.get(name)
        if category is None:
            found = (category for category, pattern in self._rules if pattern.search(name))
            category = self._known[name] = next(found, None) or category_of(name)
        return category


def naming_for(operator_rules: tuple[tuple[str, str], ...]) -> Naming:
    """The naming in which a user's (category, pattern) pairs come before the built-in rules, the first of them first.

    A pattern is a regular expression that is found anywhere in a whole name, ignoring case. The rules decide the
    categories of the table of operators and nothing else: `is_communication`, and with it the breakdown and the
    collectives, does not ask them.

    Raises StudyError for a category that does not exist, and for a pattern that is empty or not a regular expression.
    """
    rules = []
    for place, (category, pattern) in enumerate(operator_rules, 1):
        where = f"operator_rules, rule {place}: "
        if category not in [known.value for known in Category]:
            raise StudyError(
                f"{where}found category {category!r}, expected one of {', '.join(Category)}; correct it or leave it out"
            )
        if not pattern:
            raise StudyError(
                f"{where}found an empty pattern, which every name matches; expected a regular expression found in the "
                "names that the rule is meant for"
            )
        try:
            rules.append((Category(category), re.compile(pattern, re.IGNORECASE)))
        except re.error as error:
            raise StudyError(
                f"{where}found pattern {pattern!r}, expected a regular expression: {error}; put a backslash before "
                "characters that stand for themselves, such as ( and ["
            ) from error
    return Naming(tuple(rules))


@lru_cache(maxsize=65536)
def category_of(name: str) -> Category:
    """The category of an operator or GPU kernel. An autograd node counts as the operator whose gradient it computes."""
    whole = name.lower()
    for category, made_for in _candidates(_own_name(name)):
        if not made_for or any(word in whole for word in made_for):
            return category
    return _category_of_aten(name)


@lru_cache(maxsize=65536)
def is_communication(name: str) -> bool:
    """Whether an event is communication or its launch, by its name."""
    return any(category is Category.COMMUNICATION for category, _ in _candidates(_own_name(name)))


@lru_cache(maxsize=4096)
def collective_kind(name: str) -> str:
    """The kind of communication that a kernel's, an operator's or a collective's own name states."""
    return next((kind for kind, pattern in COLLECTIVES if re.search(pattern, name, re.IGNORECASE)), "other")


def is_transfer(name: str) -> bool:
    """Whether a GPU copy crosses the device's border; a copy within the device is work of the device."""
    return not ("DtoD" in name or "DeviceToDevice" in name)


def _own_name(name: str) -> str:
    """A C++ function's qualified name in lower case, without its return type, template arguments and parameters."""
    text = name.removeprefix("void ")
    for noise in _NOISE:
        text = text.replace(noise, "")
    return _OWN_NAME.match(text)[0].lower()


@lru_cache(maxsize=65536)
def _candidates(own: str) -> tuple[tuple[Category, tuple[str, ...]], ...]:
    """The rules that hold for an own name if it is made for one of some words, up to the first that always holds.

    Many whole names share an own name, so that the table is searched but once for all of them.
    """
    found = []
    for category, (words, beginnings), made_for in _FINDERS:
        if own.startswith(beginnings) or any(word in own for word in words):
            found.append((category, made_for))
            if not made_for:
                break
    return tuple(found)


def _category_of_aten(name: str) -> Category:
    """The category of an operator of PyTorch or of the autograd node named after it.

    The nodes that PyTorch generates end in a number, and older ones that are named like an operator and no more do not.
    A user's own node ends in none either, and its name may only begin like an operator's.
    """
    node = _AUTOGRAD.fullmatch(name)
    if node is not None:
        operator, exact = _HUMP.sub("_", node[1]).lower(), not node[2]
    elif name.startswith("aten::"):
        operator, exact = name.removeprefix("aten::"), False
    else:
        return Category.UNCLASSIFIED
    operator = operator.lstrip("_")
    for category, pattern in _ATEN:
        found = pattern.match(operator)
        if found and (not exact or found.end() == len(operator)):
            return category
    return Category.UNCLASSIFIED
