"""What vendors' kernel names say, by names of published traces."""

from __future__ import annotations

import pytest

from steptime.analysis.kernel_names import dtype, list_item, multiplies, tensor_cores
from steptime.analysis.roofline import missed

ON_TENSOR_CORES = [
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>(Params)",
    "void cutlass::Kernel2<cutlass_75_wmma_tensorop_bf16_s161616gemm_bf16_32x32_32x1_tn_align1>(Params)",
    "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nt_align4>(Params)",
    "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16",
    "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_nn",
    "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn",
    "turing_h1688gemm_128x128_ldg8_stages_32x1_nn",
    "nvjet_tst_192x8_64x8_4x1_v_bz_TNT",
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int>, cutlass::gemm::collective::"
    "CollectiveMma<cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<4>>, cutlass::epilogue::Elementwise>>()",
    "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext",
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)",
    "Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT16x16x256_MI16x16x1_SN_LDSB1_AFC1",
    "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x64x32_wt32x32x8",
    "_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_34Gridwise",
]
ON_ORDINARY_UNITS = [
    "volta_sgemm_64x64_nt",
    "ampere_sgemm_32x128_nt",
    "volta_scudnn_128x128_stridedB_splitK_small_nn_v1",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(Params)",
    "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int, float const*)",
    "void implicit_convolve_sgemm<float, float, 128, 6, 7, 3, 3, 5, 1, false, true, true>(int, int)",
    "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(Params)",
    "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 128, 16, 4, 4>(Params)",
    "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, float, float, float, false>(Params)",
    "ampere_gcgemm_64x64_nt",
    "void gemvNSP_kernel<float, float, float, float, 1, 16, 4, 1024>(Params)",
]
SAYING_NOTHING = ["attn_fwd", "my_fused_kernel", "triton_tem_fused_mm_3", "fused_moe_kernel"]
HELPING = [
    "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>(Params)",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true>(Params)",
    "cask_cudnn::computeOffsetsKernel(cask_cudnn::ComputeOffsetsParams)",
    "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(Params)",
    "batched_transpose_32x32_half",
    "void cudnn::ops::scalePackedTensor_kernel<float, float>(cudnnTensor4dStruct, float*, float)",
    "SubTensorOpWithScalar1d",
    "void (anonymous namespace)::elementwise_kernel_with_index<int, convolve>(int)",
    "void fbgemm_gpu::_offsets_range_cuda_kernel<int>(long, long, int const*, int*)",
    "std::enable_if<((8)>(0))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type vllm::fused_add_rms_norm_kernel",
    "void cutlass_cudnn_train::Kernel<cutlass_cudnn_train::reduction::kernel::ReduceSplitK<Matrix>>",
    "void pytorch_flash::flash_bwd_dot_do_o_kernel<true, pytorch_flash::Flash_bwd_kernel_traits<64>>(Params)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>, Array<char*, 3> >(int)",
]


@pytest.mark.parametrize(
    ("names", "expected"), [(ON_TENSOR_CORES, True), (ON_ORDINARY_UNITS, False), (SAYING_NOTHING, None)]
)
def test_the_unit_is_reported_by_the_name_or_not_at_all(names: list[str], expected: bool | None) -> None:
    assert {name: tensor_cores(name) for name in names} == dict.fromkeys(names, expected)


def test_the_kernel_that_multiplies_is_reported_from_its_helpers() -> None:
    multiplying = [name for name in (*ON_TENSOR_CORES, *ON_ORDINARY_UNITS) if "ForwardData" not in name]
    assert [name for name in multiplying if not multiplies(name)] == []
    assert [name for name in HELPING if multiplies(name)] == []


@pytest.mark.parametrize(
    ("name", "inputs", "expected"),
    [
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nt_align4>(Params)", "float32", "tf32"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x16", "float32", "tf32"),
        ("ampere_sgemm_32x128_nt", "float32", "float32"),
        ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN", "float32", "float32"),
        ("nvjet_tst_192x8_64x8_4x1_v_bz_TNT", "bfloat16", "bfloat16"),
        ("something", "float32", "float32"),
    ],
)
def test_float32_on_nvidias_matrix_units_is_tf32(name: str, inputs: str, expected: str) -> None:
    assert dtype(name, inputs) == expected


@pytest.mark.parametrize(
    ("name", "item"),
    [
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<c10::BFloat16, 4>, float>(x)", 2),
        ("void multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpListAlphaFunctor<float, 2, 2, 0>>(x)", 4),
        ("void at::native::CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 3, 64, 64>(x)", 2),
        ("void at::native::CatArrayBatchedCopy<at::native::OpaqueType<8>, unsigned int, 3, 64, 64>(x)", 8),
        ("void something_else(x)", 4),
    ],
)
def test_the_width_of_a_lists_elements_is_in_the_kernels_name(name: str, item: int) -> None:
    assert list_item(name) == item


@pytest.mark.parametrize(
    ("dimensions", "dtype", "expected"),
    [
        ((("m", 512), ("n", 1003), ("k", 64)), "bfloat16", ("n = 1003",)),
        ((("m", 512), ("n", 1004), ("k", 64)), "tf32", ()),
        ((("m", 512), ("n", 1004), ("k", 64)), "float16", ("n = 1004",)),
        ((("m", 24), ("n", 40), ("k", 8)), "float8", ("n = 40", "k = 8")),
        ((("m", 788), ("n", 1024), ("k", 64)), "bfloat16", ()),
        ((("m", 1), ("n", 1003), ("k", 64)), "bfloat16", ()),
        ((("m", 3), ("n", 3), ("k", 3)), "complex", ()),
    ],
)
def test_sides_that_do_not_fill_sixteen_bytes_are_named(
    dimensions: tuple[tuple[str, int], ...], dtype: str, expected: tuple[str, ...]
) -> None:
    assert missed(dimensions, dtype) == expected


def test_a_kernel_that_loads_sixteen_bytes_at_once_is_aligned() -> None:
    sides = (("m", 512), ("n", 1004), ("k", 64))
    assert missed(sides, "float16", "cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x64_64x3_tn_align8") == ()
    assert missed(sides, "float16", "cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x64_64x3_tn_align2") == (
        "n = 1004",
    )
