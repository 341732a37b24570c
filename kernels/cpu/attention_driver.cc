// Shares the strips of a plan out over the threads and merges those that were split.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/attention_strip.h"
#include "kernels/cpu/thread_pool.h"

namespace cairn {
namespace {

// Sums of single spans that wait for their merge, in floats. A context that has more is done in
// several waves.
constexpr size_t kWaveFloatsMax = size_t{4} << 20;
// Queries times spans above which a merge is worth waking the other threads.
constexpr size_t kParallelMergeMin = 4096;

constexpr uint32_t DivideUp(uint32_t a, uint32_t b) { return (a + b - 1) / b; }
constexpr size_t PadQueries(size_t count) {
  return (count + kQueryPad - 1) / kQueryPad * kQueryPad;
}

// Floats that only grow in number, aligned to a cache line.
class FloatBuffer {
 public:
  float* Reserve(size_t count) {
    if (count > count_) {
      memory_.reset();  // before the new one is taken
      memory_.reset(new (kAlignment) float[count]);
      count_ = count;
    }
    return memory_.get();
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Deleter {
    void operator()(float* memory) const { operator delete[](memory, kAlignment); }
  };
  std::unique_ptr<float[], Deleter> memory_;
  size_t count_ = 0;
};

// Gives out consecutive parts of a buffer, each a whole number of cache lines.
struct Carver {
  float* next;
  float* Take(size_t count) {
    float* const part = next;
    next += (count + 15) / 16 * 16;
    return part;
  }
};

struct ThreadScratch {
  AttentionScratch scratch;
  AttentionSums sums;
};

ThreadScratch ReserveScratch(size_t queries, size_t head_dim) {
  static thread_local FloatBuffer buffer;  // see attention.h
  const size_t padded = PadQueries(queries) + 16;
  Carver carver{
      buffer.Reserve(padded * (2 * kQueryStride + 2 * head_dim + 7) + kAttentionPanelFloats)};
  ThreadScratch out;
  out.scratch.queries = carver.Take(padded * kQueryStride);
  out.scratch.scores = carver.Take(padded * kQueryStride);
  out.scratch.values = carver.Take(padded * head_dim);
  out.scratch.keep = carver.Take(padded);
  out.scratch.add = carver.Take(padded);
  out.scratch.max = carver.Take(padded);
  out.scratch.sum = carver.Take(padded);
  out.scratch.seen = reinterpret_cast<uint32_t*>(carver.Take(padded));
  out.scratch.panel = carver.Take(kAttentionPanelFloats);
  out.sums.max = carver.Take(padded);
  out.sums.sum = carver.Take(padded);
  out.sums.values = carver.Take(padded * head_dim);
  return out;
}

size_t SumsFloats(size_t queries, size_t head_dim) {
  return (PadQueries(queries) * 2 + queries * head_dim + 15) / 16 * 16;
}

AttentionSums SumsAt(float* memory, size_t queries) {
  const size_t padded = PadQueries(queries);
  return {memory, memory + padded, memory + 2 * padded};
}

void Clear(const AttentionSums& sums, size_t queries, size_t head_dim) {
  std::fill_n(sums.max, PadQueries(queries), -std::numeric_limits<float>::infinity());
  std::fill_n(sums.sum, PadQueries(queries), 0.0f);
  std::fill_n(sums.values, queries * head_dim, 0.0f);
}

// Consecutive spans of one split strip, each with sums of its own.
struct SpanRun {
  uint32_t strip;  // index into the plan's split strips
  uint32_t span_begin;
  uint32_t span_end;
  float* sums;  // of the first; those of the next span follow
};
// Some queries of a run, to be merged span by span.
struct MergeTask {
  const SpanRun* run;
  uint32_t query_begin;
  uint32_t query_end;
};

// What a calling thread keeps from one call to the next, so that a call allocates nothing.
struct CallerMemory {
  FloatBuffer sums;
  AttentionPlan plan;
  std::vector<AttentionSums> totals;  // of each split strip, over the waves so far
  std::vector<SpanRun> wave;          // at most one run a strip
  std::vector<SpanRun> tasks;         // the runs of the wave, cut up for the threads
  std::vector<MergeTask> merges;      // of the wave
};

CallerMemory& MemoryOfThread() {
  static thread_local CallerMemory memory;  // see attention.h
  return memory;
}

// One call.
class Run {
 public:
  Run(const PagedAttentionArgs& args, const AttentionKernels& kernels, ThreadPool& pool);
  void Execute();

 private:
  uint32_t QueryCount(const AttentionStripPlan& strip) const {
    return strip.kv_head_count * strip.row_count * shape_.group;
  }
  AttentionStrip View(const AttentionStripPlan& strip) const;
  ThreadScratch Scratch() const { return ReserveScratch(query_count_max_, shape_.head_dim); }

  void PrepareTotals();
  void PlanWave();
  void CutRun(SpanRun run);
  void AttendWhole(const AttentionStripPlan& plan) const;
  void AttendRun(const SpanRun& run) const;
  void MergeWave();
  void MergeSpans(const MergeTask& merge) const;

  const PagedAttentionArgs& args_;
  const std::span<const AttentionSegment> segments_;
  const AttentionKernels& kernels_;
  ThreadPool& pool_;
  AttentionShape shape_{};
  CallerMemory& memory_ = MemoryOfThread();
  const AttentionPlan& plan_ = memory_.plan;
  const std::vector<SpanRun>& tasks_ = memory_.tasks;
  uint32_t query_count_max_ = 0;

  float* wave_sums_ = nullptr;
  uint32_t next_strip_ = 0;  // where the next wave begins
  uint32_t next_span_ = 0;
};

Run::Run(const PagedAttentionArgs& args, const AttentionKernels& kernels, ThreadPool& pool)
    : args_(args),
      segments_(args.batch->segments().first(args.segment_count)),
      kernels_(kernels),
      pool_(pool) {
  const KvLayout& layout = *args.layout;
  CHECK(layout.type == KvType::kF16);
  CHECK(layout.head_dim % 8 == 0 && layout.head_dim > 0 && layout.head_dim <= kHeadDimMax);
  CHECK(layout.block_tokens % kTileTokens == 0 && layout.block_tokens > 0);
  CHECK(kAttentionSpan % layout.block_tokens == 0);  // hence a power of two
  CHECK(layout.kv_head_count > 0 && args.head_count % layout.kv_head_count == 0);
  CHECK(args.head_count > 0 && args.layer < layout.layer_count);
  for (const AttentionSegment& segment : segments_) {
    CHECK(segment.row_count > 0 && segment.row_count <= kContextMax);
    CHECK(segment.first_position <= kContextMax - segment.row_count);
  }
  shape_.head_dim = layout.head_dim;
  shape_.group = args.head_count / layout.kv_head_count;
  shape_.block_shift = static_cast<uint32_t>(std::countr_zero(layout.block_tokens));
  shape_.row_stride = size_t{args.head_count} * layout.head_dim;
  shape_.key_offset = layout.key_offset(args.layer, 0);
  shape_.value_offset = layout.value_offset(args.layer, 0);
  shape_.head_bytes = layout.head_bytes();

  PlanAttention(segments_, layout.kv_head_count, shape_.group, pool.thread_count(), memory_.plan);
  for (const auto& strip : plan_.whole)
    query_count_max_ = std::max(query_count_max_, QueryCount(strip));
  for (const auto& strip : plan_.split)
    query_count_max_ = std::max(query_count_max_, QueryCount(strip));
}

AttentionStrip Run::View(const AttentionStripPlan& plan) const {
  const AttentionSegment& segment = segments_[plan.segment];
  const size_t offset = (size_t{segment.first_row} + plan.row_begin) * shape_.row_stride +
                        size_t{plan.kv_head_begin} * shape_.group * shape_.head_dim;
  AttentionStrip strip{};
  strip.q = args_.q + offset;
  strip.out = args_.out + offset;
  strip.blocks = segment.blocks;
  strip.first_position = segment.first_position + plan.row_begin;
  strip.row_count = plan.row_count;
  strip.kv_head_begin = plan.kv_head_begin;
  strip.kv_head_count = plan.kv_head_count;
  return strip;
}

void Run::Execute() {
  PrepareTotals();
  const size_t whole_count = plan_.whole.size();
  PlanWave();
  pool_.ForEach(whole_count + tasks_.size(), [this, whole_count](size_t i) {
    if (i < whole_count) {
      AttendWhole(plan_.whole[i]);
    } else {
      AttendRun(tasks_[i - whole_count]);
    }
  });
  while (!tasks_.empty()) {
    MergeWave();
    PlanWave();
    pool_.ForEach(tasks_.size(), [this](size_t i) { AttendRun(tasks_[i]); });
  }
}

void Run::PrepareTotals() {
  size_t total_floats = 0;
  size_t span_floats = 0;
  for (const AttentionStripPlan& strip : plan_.split) {
    const size_t floats = SumsFloats(QueryCount(strip), shape_.head_dim);
    total_floats += floats;
    span_floats += strip.span_count * floats;
  }
  wave_sums_ = memory_.sums.Reserve(total_floats + std::min(span_floats, kWaveFloatsMax));
  memory_.totals.clear();
  for (const AttentionStripPlan& strip : plan_.split) {
    const uint32_t queries = QueryCount(strip);
    memory_.totals.push_back(SumsAt(wave_sums_, queries));
    Clear(memory_.totals.back(), queries, shape_.head_dim);
    wave_sums_ += SumsFloats(queries, shape_.head_dim);
  }
}

void Run::PlanWave() {
  memory_.wave.clear();
  memory_.tasks.clear();
  size_t used = 0;
  while (next_strip_ < plan_.split.size()) {
    const AttentionStripPlan& strip = plan_.split[next_strip_];
    const size_t floats = SumsFloats(QueryCount(strip), shape_.head_dim);
    CHECK(floats <= kWaveFloatsMax);
    const auto room = static_cast<uint32_t>((kWaveFloatsMax - used) / floats);
    const uint32_t end = std::min(strip.span_count, next_span_ + room);
    if (end == next_span_) return;
    memory_.wave.push_back({next_strip_, next_span_, end, wave_sums_ + used});
    CutRun(memory_.wave.back());
    used += (end - next_span_) * floats;
    next_span_ = end;
    if (end < strip.span_count) return;
    ++next_strip_;
    next_span_ = 0;
  }
}

// Into long tasks first, since each begins with cold reading, and ever shorter ones, so that all
// threads end together: each is three quarters of an even share of what is left (after guided
// self-scheduling: Polychronopoulos and Kuck 1987).
void Run::CutRun(SpanRun run) {
  const size_t floats = SumsFloats(QueryCount(plan_.split[run.strip]), shape_.head_dim);
  while (run.span_begin < run.span_end) {
    const uint32_t left = run.span_end - run.span_begin;
    const uint32_t count = DivideUp(3 * left, 4 * pool_.thread_count());
    memory_.tasks.push_back({run.strip, run.span_begin, run.span_begin + count, run.sums});
    run.span_begin += count;
    run.sums += count * floats;
  }
}

void Run::AttendWhole(const AttentionStripPlan& plan) const {
  const ThreadScratch own = Scratch();
  const AttentionStrip strip = View(plan);
  Clear(own.sums, QueryCount(plan), shape_.head_dim);
  kernels_.attend(shape_, strip, 0, plan.span_count, own.sums, 0, own.scratch);
  kernels_.finish(shape_, strip, own.sums, 0, QueryCount(plan));
}

void Run::AttendRun(const SpanRun& run) const {
  const AttentionStripPlan& plan = plan_.split[run.strip];
  const uint32_t queries = QueryCount(plan);
  const size_t floats = SumsFloats(queries, shape_.head_dim);
  const AttentionSums first = SumsAt(run.sums, queries);
  for (uint32_t i = 0; i < run.span_end - run.span_begin; ++i) {
    Clear(first.Shifted(i * floats), queries, shape_.head_dim);
  }
  kernels_.attend(shape_, View(plan), run.span_begin, run.span_end, first, floats,
                  Scratch().scratch);
}

void Run::MergeWave() {
  std::vector<MergeTask>& merges = memory_.merges;
  merges.clear();
  size_t work = 0;
  for (const SpanRun& run : memory_.wave) {
    const uint32_t queries = QueryCount(plan_.split[run.strip]);
    for (uint32_t query = 0; query < queries; query += kQueryPad) {
      merges.push_back({&run, query, std::min(query + kQueryPad, queries)});
    }
    work += queries * (run.span_end - run.span_begin);
  }
  if (work >= kParallelMergeMin) {
    pool_.ForEach(merges.size(), [&](size_t i) { MergeSpans(merges[i]); });
  } else {
    for (const MergeTask& merge : merges) MergeSpans(merge);
  }
}

void Run::MergeSpans(const MergeTask& merge) const {
  const SpanRun& run = *merge.run;
  const AttentionStripPlan& plan = plan_.split[run.strip];
  const uint32_t queries = QueryCount(plan);
  const AttentionSums& total = memory_.totals[run.strip];
  AttentionSums later = SumsAt(run.sums, queries);
  for (uint32_t span = run.span_begin; span < run.span_end; ++span) {
    kernels_.merge(shape_, total, later, merge.query_begin, merge.query_end);
    later = later.Shifted(SumsFloats(queries, shape_.head_dim));
  }
  if (run.span_end == plan.span_count) {
    kernels_.finish(shape_, View(plan), total, merge.query_begin, merge.query_end);
  }
}

}  // namespace

void RunAttention(const PagedAttentionArgs& args, const AttentionKernels& kernels,
                  ThreadPool& pool) {
  Run(args, kernels, pool).Execute();
}

}  // namespace cairn
