"""Tiles of a product by its kernel's name, how they fill a device, and heads of attention that are padded."""

from __future__ import annotations

import pytest

from steptime.analysis.tiles import Shapes, filled, padded_head, tiles_of, waves_of

TALL: Shapes = ((16384, 384), (384, 1536))


@pytest.mark.parametrize(
    ("kernel", "operator", "shapes", "tiles"),
    [
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "mm", TALL, 128 * 6),  # either order gives as many
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nt_align1>", "mm", ((192, 8), (8, 768)), 2 * 12),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3", "addmm", ((512,), *TALL), 256 * 24),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn", "bmm", ((12, 128, 64), (12, 64, 128)), 12 * 2),
        ("Cijk_Ailk_Bljk_BBS_BH_MT256x128x64_MI16x16x16x1_SN_GSU2_x", "mm", ((256, 99), (99, 512)), 8),
        ("nvjet_sm90_tst_64x8_64x16_1x2_h_bz_splitK_TNT", "mm", TALL, None),
        ("some_gemm_kernel", "mm", TALL, None),
        ("nvjet_sm90_tst_256x128_64x4", "softmax", TALL, None),
        ("nvjet_sm90_tst_256x128_64x4", "addmm", TALL, None),  # its factors are not told
        ("nvjet_sm90_tst_256x128_64x4", "mm", ((5,), (5, 3)), None),
    ],
)
def test_tiles_of_a_product(kernel: str, operator: str, shapes: Shapes, tiles: int | None) -> None:
    assert tiles_of(kernel, operator, shapes) == tiles


def test_a_grid_counts_where_it_says_what_there_is_to_do() -> None:
    assert waves_of("volta_sgemm_128x64_nn", "mm", TALL, 40, 80) == 0.5
    assert waves_of("nvjet_sm90_tst_256x128_64x4_1x2", "mm", TALL, 132, 132) == pytest.approx(768 / 132)
    assert waves_of("conv_kernel", "convolution_backward", ((1, 2), (3, 4)), 14, 132) == pytest.approx(14 / 132)
    assert waves_of("nvjet_sm90_x", "mm", TALL, 132, 132) is None, "its grid is the device's"
    assert waves_of("volta_sgemm_128x64_nn", "mm", TALL, 40, 0) is None


def test_only_persistent_kernels_leave_multiprocessors_idle_behind_the_first_wave() -> None:
    assert filled("volta_sgemm_128x64_nn", 0.25) == 0.25
    assert filled("volta_sgemm_128x64_nn", 1.1) == 1.0
    assert filled("nvjet_sm90_tst_256x128", 1.1) == pytest.approx(0.55)
    assert filled("nvjet_sm90_tst_256x128", 2.0) == 1.0
    assert filled("x", 0.0) == 0.0


@pytest.mark.parametrize(
    ("kernel", "size", "device", "padded"),
    [
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<96, 128, 64, 4> >", 80, "NVIDIA H100", 96),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_kernel<Flash_bwd_kernel_traits<(int)64, 1>", 64, "", 64),
        ("attn_fwd.kd", 192, "AMD Instinct MI300X", 256),
        ("attn_fwd.kd", 128, "AMD Instinct MI300X", 128),
        ("attn_fwd.kd", 1, "AMD Instinct MI300X", 2),
        ("pytorch_flash_kernel", 80, "NVIDIA A100", 96),
        ("pytorch_flash_kernel", 512, "NVIDIA A100", 512),
        ("cudnn_generated_fort_native_sdpa", 80, "NVIDIA H100", 80),
    ],
)
def test_a_head_is_padded_to_what_the_library_has(kernel: str, size: int, device: str, padded: int) -> None:
    assert padded_head(kernel, size, device) == padded
