// torch_npu registers the settings of its allocator while it is loaded, and a name that is taken ends the process. A CUDA build of
// torch has taken some of them. Nothing here uses CUDA's allocator, so torch_npu gets the names, as it does beside a CPU build.
// The libraries of CANN need this one, and they are loaded before torch_npu's.
#include <c10/core/AllocatorConfig.h>
#include <torch_npu/csrc/core/npu/NPUAllocatorConfig.h>
__attribute__((constructor)) static void give_up_names() {
  auto& taken = c10::CachingAllocator::AcceleratorAllocatorConfig::getMutableKeys();
  for (auto& name : c10_npu::NPUCachingAllocator::NPUAllocatorConfig::getKeys()) taken.erase(name);
}
