// A device with memory of its own, as a GPU has it: its addresses mean nothing to threads of the
// host (touching one is a segmentation fault), its operations take no addresses of the host's, and
// everything on its streams happens later. Around another device, whose memory and streams do the
// work. Threads: as of that device.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "tests/fakes/forwarding_device.h"

namespace cairn {

class FarDevice final : public ForwardingDevice {
 public:
  // The inner device's copy streams also play the compute stream. Of the copies, `copy_error` fail.
  explicit FarDevice(std::unique_ptr<Device> inner, double copy_error = 0, uint64_t seed = 1)
      : ForwardingDevice(std::move(inner)),
        info_(ForwardingDevice::info()),
        places_(std::make_shared<Places>()),
        faults_(std::make_shared<Faults>(copy_error, seed)) {
    info_.reads_host_memory = false;
    info_.host_addressable = false;
  }

  const DeviceInfo& info() const override { return info_; }

  Result<std::unique_ptr<Buffer>> Allocate(size_t size_bytes) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Buffer> near, ForwardingDevice::Allocate(size_bytes));
    return std::unique_ptr<Buffer>(std::make_unique<FarBuffer>(std::move(near), places_));
  }
  Result<std::unique_ptr<Stream>> NewStream(StreamUse use) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, ForwardingDevice::NewStream(StreamUse::kCopy));
    auto faults = use == StreamUse::kCopy ? faults_ : nullptr;
    return std::unique_ptr<Stream>(
        std::make_unique<FarStream>(std::move(stream), places_, std::move(faults)));
  }

  // Of the copies that are ordered from now on, so many fail.
  void FailCopies(double chance) { faults_->Set(chance); }

  // Where the bytes of a device address really are; other addresses as they are. For tests, which
  // see to it themselves that nothing else uses them.
  std::byte* Reach(const void* address) const { return places_->Find(address); }

 private:
  class Faults {
   public:
    Faults(double copy_error, uint64_t seed) : copy_error_(copy_error), rng_(seed) {}
    bool Happens() {
      std::lock_guard lock(mutex_);
      return rng_.Chance(copy_error_);
    }
    void Set(double copy_error) {
      std::lock_guard lock(mutex_);
      copy_error_ = copy_error;
    }

   private:
    std::mutex mutex_;
    double copy_error_;
    Rng rng_;
  };

  // Far address -> near one.
  class Places {
   public:
    void Add(std::byte* far, std::byte* near, size_t size_bytes) {
      std::lock_guard lock(mutex_);
      places_[far] = {near, size_bytes};
    }
    void Remove(std::byte* far) {
      std::lock_guard lock(mutex_);
      places_.erase(far);
    }
    std::byte* Find(const void* address) const {
      auto* const at = static_cast<std::byte*>(const_cast<void*>(address));
      std::lock_guard lock(mutex_);
      auto place = places_.upper_bound(at);
      if (place == places_.begin()) return at;
      --place;
      const auto offset = static_cast<size_t>(at - place->first);
      return offset < place->second.size_bytes ? place->second.near + offset : at;
    }

   private:
    struct Place {
      std::byte* near;
      size_t size_bytes;
    };
    mutable std::mutex mutex_;
    std::map<std::byte*, Place> places_;
  };

  class FarBuffer final : public Buffer {
   public:
    FarBuffer(std::unique_ptr<Buffer> near, std::shared_ptr<Places> places)
        : near_(std::move(near)), places_(std::move(places)) {
      void* const far =
          mmap(nullptr, near_->size_bytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      CHECK(far != MAP_FAILED);
      far_ = static_cast<std::byte*>(far);
      places_->Add(far_, near_->data(), near_->size_bytes());
    }
    ~FarBuffer() override {
      places_->Remove(far_);
      munmap(far_, near_->size_bytes());
    }
    std::byte* data() override { return far_; }
    size_t size_bytes() const override { return near_->size_bytes(); }
    void WillUse(size_t size_bytes) override { near_->WillUse(size_bytes); }

   private:
    std::unique_ptr<Buffer> near_;
    std::shared_ptr<Places> places_;
    std::byte* far_ = nullptr;
  };

  class FarEvent final : public Event {
   public:
    FarEvent(EventRef inner, bool fails) : inner_(std::move(inner)), fails_(fails) {}
    bool Passed() const override { return inner_->Passed(); }
    Status Wait() override {
      RETURN_IF_ERROR(inner_->Wait());
      return fails_ ? Unavailable("the copy failed") : Status();
    }
    double SecondsSince(const Event& earlier) const override {
      return inner_->SecondsSince(*static_cast<const FarEvent&>(earlier).inner_);
    }

   private:
    const EventRef inner_;
    const bool fails_;
  };

  // A copy that fails leaves its target half written; the next event or Synchronize says so.
  class FarStream final : public Stream {
   public:
    FarStream(std::unique_ptr<Stream> inner, std::shared_ptr<const Places> places,
              std::shared_ptr<Faults> faults)
        : inner_(std::move(inner)), places_(std::move(places)), faults_(std::move(faults)) {}

    EventRef Record() override {
      return std::make_shared<FarEvent>(inner_->Record(), std::exchange(has_failed_, false));
    }
    void Wait(const EventRef& event) override { inner_->Wait(event); }
    void Copy(void* destination, const void* source, size_t size_bytes) override {
      has_failed_ = has_failed_ || (faults_ != nullptr && faults_->Happens());
      inner_->Copy(places_->Find(destination), places_->Find(source),
                   has_failed_ ? size_bytes / 2 : size_bytes);
    }
    void Clear(void* destination, size_t size_bytes) override {
      inner_->Clear(places_->Find(destination), size_bytes);
    }
    Status Synchronize() override {
      RETURN_IF_ERROR(inner_->Synchronize());
      return std::exchange(has_failed_, false) ? Unavailable("a copy failed") : Status();
    }

   private:
    std::unique_ptr<Stream> inner_;
    const std::shared_ptr<const Places> places_;
    const std::shared_ptr<Faults> faults_;
    bool has_failed_ = false;
  };

  DeviceInfo info_;
  std::shared_ptr<Places> places_;
  std::shared_ptr<Faults> faults_;
};

}  // namespace cairn
