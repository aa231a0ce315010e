// gpu/guarded_memory.h - device memory that nothing follows: an access beyond its end is an
// error of the device at once, with no sanitizer.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "support/inputs.h"

namespace snug::test {

// Addresses for two pieces, memory behind the first one only.
class GuardedMemory {
 public:
  explicit GuardedMemory(std::size_t min_bytes) {
    int device = 0;
    EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
    EXPECT_EQ(cudaFree(nullptr), cudaSuccess);  // there is a context from here on
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    std::size_t unit = 0;
    EXPECT_EQ(driver("cuMemGetAllocationGranularity", &cuMemGetAllocationGranularity)(
                  &unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
              CUDA_SUCCESS);
    num_bytes_ = (min_bytes + unit - 1) / unit * unit;
    EXPECT_EQ(driver("cuMemAddressReserve", &cuMemAddressReserve)(&start_, 2 * num_bytes_, 0, 0, 0),
              CUDA_SUCCESS);
    EXPECT_EQ(driver("cuMemCreate", &cuMemCreate)(&memory_, num_bytes_, &prop, 0), CUDA_SUCCESS);
    EXPECT_EQ(driver("cuMemMap", &cuMemMap)(start_, num_bytes_, 0, memory_, 0), CUDA_SUCCESS);
    const CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    EXPECT_EQ(driver("cuMemSetAccess", &cuMemSetAccess)(start_, num_bytes_, &access, 1),
              CUDA_SUCCESS);
  }
  ~GuardedMemory() {
    driver("cuMemUnmap", &cuMemUnmap)(start_, num_bytes_);
    driver("cuMemRelease", &cuMemRelease)(memory_);
    driver("cuMemAddressFree", &cuMemAddressFree)(start_, 2 * num_bytes_);
  }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  // Puts bytes right before the end.
  void* place(const Bytes& bytes) const {
    void* at = reinterpret_cast<void*>(start_ + num_bytes_ - bytes.size());
    EXPECT_LE(bytes.size(), num_bytes_);
    EXPECT_EQ(cudaMemcpy(at, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), cudaSuccess);
    return at;
  }

 private:
  // The driver's function of that name: tests are not linked with the driver.
  template <class Function>
  static Function driver(const char* name, Function) {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    EXPECT_EQ(cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found),
              cudaSuccess)
        << name;
    return reinterpret_cast<Function>(entry);
  }

  std::size_t num_bytes_ = 0;
  CUdeviceptr start_ = 0;
  CUmemGenericAllocationHandle memory_ = 0;
};

}  // namespace snug::test
