"""Breaks the CUDA kernels and what uses them on purpose, one place at a time, and sees to it that tests notice.

    mutants.py BUILD [NAME...]

BUILD is a release build whose tests of CUDA pass. A mutant is a replacement of one piece of text in one file,
compiled with the build's own commands into a copy of the test. A mutant whose tests pass is a hole in them: it is named,
and the exit code is 1.
"""

import concurrent.futures
import dataclasses
import os
import pathlib
import subprocess
import sys

from rebuild import KERNELS, ROOT, TEST, Build

SECONDS_MAX = 300


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    file: str  # in `folder`
    old: str  # occurs once
    new: str
    tests: str  # those that are to notice
    units: tuple = ()  # what includes the file, when it is a header
    folder: str = KERNELS
    test: str = TEST
    tries: int = 1  # of the tests, which meet it only where copies are slower than the thread that asks for them

    def compiled(self):
        return [self.folder + unit for unit in self.units or (self.file,)]


MUTANTS = [
    # Barriers and waits that are not there.
    Mutant("chunks_read_before_others_copies", "attention_chunks.cu",
           "    __syncthreads();\n#pragma unroll", "#pragma unroll", "*CudaAttention*"),
    Mutant("chunks_refill_what_others_read", "attention_chunks.cu",
           "    __syncthreads();  // the stage", "    // the stage", "*CudaAttention*"),
    Mutant("chunks_wait_for_one_copy_too_few", "attention_chunks.cu",
           "gpu::WaitCopies<1>()", "gpu::WaitCopies<2>()", "*CudaAttention*"),
    Mutant("tiles_read_before_others_copies", "product_tiled.cu",
           "    __syncthreads();\n    MultiplyStage", "    MultiplyStage", "*CudaMatMul*"),
    Mutant("tiles_refill_what_others_read", "product_tiled.cu",
           "    __syncthreads();  // the stage", "    // the stage", "*CudaMatMul*"),
    Mutant("tiles_never_wait_for_the_last_copy", "product_tiled.cu",
           "gpu::WaitCopies<0>()", "gpu::WaitCopies<1>()", "*CudaMatMul*"),
    Mutant("splits_are_added_before_they_are_there", "product_few_rows.cu",
           "  __syncthreads();\n", "", "*CudaMatMul*"),
    Mutant("norm_adds_sums_before_they_are_there", "row_kernels.cu",
           "  __syncthreads();\n", "", "*CudaRows*"),
    # Masks and bounds that are off by one.
    Mutant("mask_lets_one_position_more_through", "attention_warp.h",
           "if (position >= seen", "if (position > seen", "*CudaAttention*", ("attention_chunks.cu",)),
    Mutant("rows_see_one_position_too_few", "attention_block.h",
           "/ params.group + 1;", "/ params.group;", "*CudaAttention*", ("attention_chunks.cu",)),
    Mutant("gate_goes_one_vector_too_far", "row_kernels.cu",
           "if (i >= vectors)", "if (i > vectors)", "*CudaRows*"),
    Mutant("rotation_takes_one_pair_more", "rope_kernel.cu",
           "if (2 * pair >= params.rotary_dim)", "if (2 * pair > params.rotary_dim)", "*CudaRope*"),
    # Strides and orders that are wrong.
    Mutant("values_have_another_stride", "attention_block.h",
           "size_t{position % tokens} * params.head_dim", "size_t{position % tokens} * (params.head_dim + 8)",
           "*CudaAttention*", ("attention_chunks.cu",)),
    Mutant("keys_have_another_stride", "rope_kernel.cu",
           "keys[size_t{2 * pair + 1} * params.block_tokens + token]",
           "keys[size_t{2 * pair + 1} * params.head_dim + token]", "*CudaRope*"),
    Mutant("maximum_of_half_a_row", "attention_warp.h",
           "        top = fmaxf(top, __shfl_xor_sync(gpu::kFullWarp, top, 2));\n", "", "*CudaAttention*",
           ("attention_chunks.cu",)),
    Mutant("large_rows_stay_divided", "product_dense.cu", "row[i] *= scale;", "row[i] *= 1;", "*CudaDenseMatMul*"),
    Mutant("high_and_low_halves_swapped", "product_tile.h",
           "fmaf(2048.0f, hi[i], lo[i])", "fmaf(2048.0f, lo[i], hi[i])", "*CudaMatMul*",
           ("product_few_rows.cu", "product_tiled.cu")),
    # Ties that the host breaks otherwise.
    Mutant("ties_go_to_the_higher_id", "top_k.cu",
           "return uint64_t{ordered} << 32 | (0xffffffffu - id);", "return uint64_t{ordered} << 32 | id;", "*CudaRows*"),
    # Recordings of what is not there any more, or more than there is.
    Mutant("recordings_outlive_the_memory_they_use", "cuda_ops.cc",
           ".activations = activations_.data(),", ".activations = nullptr,", "CudaGraphs.*", test="cuda_graphs_test"),
    Mutant("spans_that_are_not_there_are_attended", "attention_spans.cu",
           "  if (item.segment == kNoSegment) return;\n", "", "CudaGraphs.*", test="cuda_graphs_test"),
    # Streams that nothing orders.
    Mutant("copies_do_not_wait_for_what_is_computed", "copy_queue.cc",
           "    if (copy->after_ != waited) lane.stream->Wait(copy->after_);\n", "", "CudaBlockMoves.*",
           folder="offload/", test="cuda_device_test"),
    Mutant("layers_are_attended_before_they_have_come", "model.cc",
           "stream_->Wait(arrivals(index))", "stream_->Wait(arrivals(0))", "CudaTiers.RandomWaves*", folder="engine/",
           test="cuda_engine_test", tries=3),
]


def run(build, mutant):
    """(mutant, None) when it was noticed, or else what is wrong."""
    folder = build.folder / "mutants" / mutant.name
    changed = folder / mutant.folder / mutant.file
    changed.parent.mkdir(parents=True, exist_ok=True)
    text = (ROOT / mutant.folder / mutant.file).read_text()
    if text.count(mutant.old) != 1:
        return mutant, f"what it replaces is {text.count(mutant.old)} times in {mutant.file}"
    changed.write_text(text.replace(mutant.old, mutant.new))
    try:
        objects = []
        for unit in mutant.compiled():
            source = changed if unit == mutant.folder + mutant.file else ROOT / unit
            objects.append(folder / (pathlib.Path(unit).name + ".o"))
            build.compile_unit(unit, objects[-1], source=source, overlay=folder)
        test = folder / mutant.test
        build.link_test(objects, test)
    except subprocess.CalledProcessError as error:
        return mutant, "it does not build: " + error.stderr[:2000]
    try:
        for _ in range(mutant.tries):
            done = subprocess.run([test, f"--gtest_filter={mutant.tests}", "--gtest_fail_fast"], timeout=SECONDS_MAX,
                                  capture_output=True, text=True, errors="replace")
            if done.returncode != 0:
                break
    finally:
        test.unlink()
    if "[ RUN " not in done.stdout:
        return mutant, f"no test is named {mutant.tests}"
    return mutant, None if done.returncode != 0 else "its tests pass"


def main():
    chosen = [m for m in MUTANTS if not sys.argv[2:] or m.name in sys.argv[2:]]
    builds = {test: Build(pathlib.Path(sys.argv[1]).resolve(), test) for test in {m.test for m in chosen}}
    holes = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for mutant, problem in pool.map(lambda m: run(builds[m.test], m), chosen):
            print(f"{mutant.name}: {problem or 'noticed'}", flush=True)
            holes += problem is not None
    print(f"{len(chosen)} mutants, {len(chosen) - holes} noticed")
    return holes > 0


if __name__ == "__main__":
    sys.exit(main())
