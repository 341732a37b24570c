#include "tests/cuda_emu/memory_shadow.h"

#include <sys/mman.h>

#include "base/check.h"

namespace cairn::cuemu {
namespace {

constexpr uint32_t kClosed = 0;
constexpr uint32_t kUntouched = 1;
static_assert(Epoch(0, 1).bits() > kUntouched);
constexpr auto kRelaxed = std::memory_order_relaxed;

bool Ordered(uint32_t epoch, const Moment& moment) {
  return epoch <= kUntouched || moment.clock.Reaches(Epoch::FromBits(epoch));
}

std::optional<AccessProblem> Outside() { return AccessProblem{.outside = true}; }

std::optional<AccessProblem> Conflict(uint32_t epoch, AccessKind kind) {
  return AccessProblem{.other = Epoch::FromBits(epoch), .other_kind = kind};
}

}  // namespace

MemoryShadow::MemoryShadow(const std::byte* base, size_t bytes)
    : base_(base), bytes_(bytes), mapped_bytes_((bytes / kGranuleBytes + 1) * sizeof(Cell)) {
  // Fresh pages are zero: closed.
  void* mapping = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(mapping != MAP_FAILED);
  cells_ = static_cast<Cell*>(mapping);
}

MemoryShadow::~MemoryShadow() { munmap(cells_, mapped_bytes_); }

void MemoryShadow::Open(const std::byte* address, size_t bytes) {
  for (size_t i = IndexOf(address); i <= IndexOf(address + bytes - 1); i++) {
    cells_[i].writer.store(kUntouched, kRelaxed);
    for (auto& reader : cells_[i].readers) reader.store(kUntouched, kRelaxed);
  }
}

void MemoryShadow::Close(const std::byte* address, size_t bytes) {
  for (size_t i = IndexOf(address); i <= IndexOf(address + bytes - 1); i++) {
    cells_[i].writer.store(kClosed, kRelaxed);
  }
}

std::optional<AccessProblem> MemoryShadow::Read(Cell& cell, const Moment& moment) {
  const uint32_t now = moment.epoch.bits();
  const uint32_t writer = cell.writer.load(kRelaxed);
  if (writer == kClosed) return Outside();
  if (!Ordered(writer, moment)) return Conflict(writer, AccessKind::kWrite);
  // Takes the place of a read that it comes after, or else of the last one.
  for (size_t i = 0; i < kReaders; i++) {
    const uint32_t reader = cell.readers[i].load(kRelaxed);
    if (reader == now) return std::nullopt;
    if (Ordered(reader, moment) || i == kReaders - 1) {
      cell.readers[i].store(now, kRelaxed);
      return std::nullopt;
    }
  }
  return std::nullopt;
}

std::optional<AccessProblem> MemoryShadow::Write(Cell& cell, const Moment& moment) {
  const uint32_t now = moment.epoch.bits();
  const uint32_t writer = cell.writer.load(kRelaxed);
  if (writer == kClosed) return Outside();
  if (!Ordered(writer, moment)) return Conflict(writer, AccessKind::kWrite);
  for (const auto& place : cell.readers) {
    const uint32_t reader = place.load(kRelaxed);
    if (!Ordered(reader, moment)) return Conflict(reader, AccessKind::kRead);
  }
  cell.writer.store(now, kRelaxed);
  return std::nullopt;
}

std::optional<AccessProblem> MemoryShadow::Note(const Moment& moment, const void* address,
                                                size_t bytes, AccessKind kind) {
  if (bytes == 0) return std::nullopt;
  const auto* first = static_cast<const std::byte*>(address);
  if (!Covers(first) || !Covers(first + bytes - 1)) return Outside();
  const size_t last_index = IndexOf(first + bytes - 1);
  for (size_t i = IndexOf(first); i <= last_index; i++) {
    const auto problem =
        kind == AccessKind::kRead ? Read(cells_[i], moment) : Write(cells_[i], moment);
    if (problem.has_value()) return problem;
  }
  return std::nullopt;
}

}  // namespace cairn::cuemu
