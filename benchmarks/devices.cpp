// A device in the processor's memory whose tensors mix with the processor's no more than CUDA's do: an operator that is given both
// is an error, and so is a generator of the processor. It computes with the processor's kernels, so results are the same.
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <torch/extension.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace {
constexpr auto KIND = at::DeviceType::PrivateUse1;
constexpr auto KEY = c10::DispatchKey::PrivateUse1;
// As with CUDA, indices and what is copied may be on the processor.
const std::array<std::string, 6> MAY_MIX = {
    "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::copy_", "aten::_foreach_copy_"};

void release(void* memory) { std::free(memory); }

struct Memory final : at::Allocator {
  at::DataPtr allocate(size_t bytes) override {
    void* memory = bytes ? std::aligned_alloc(64, (bytes + 63) / 64 * 64) : nullptr;
    return {memory, memory, &release, at::Device(KIND, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};
Memory memory;

// The same numbers as a tensor of the processor.
at::Tensor shown(const at::Tensor& tensor) {
  if (tensor.device().type() != KIND) return tensor;
  auto options = tensor.options().device(at::kCPU).requires_grad(false);
  return at::from_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(), options);
}

at::Tensor empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device>,
                 std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &memory, c10::DispatchKeySet(KEY), c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, &memory, c10::DispatchKeySet(KEY), c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  if (from.numel()) shown(to).copy_(shown(from));
  return to;
}

const at::Tensor& resize(const at::Tensor& tensor, c10::IntArrayRef sizes, std::optional<at::MemoryFormat>) {
  auto needed = at::detail::computeStorageNbytesContiguous(sizes, tensor.dtype().itemsize(), tensor.storage_offset());
  auto& storage = const_cast<c10::Storage&>(tensor.storage());
  if (needed > storage.nbytes()) {
    auto fresh = memory.allocate(needed);
    if (storage.nbytes()) std::memcpy(fresh.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(fresh));
    storage.set_nbytes(needed);
  }
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) ::resize(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

at::Scalar item(const at::Tensor& tensor) { return at::_local_scalar_dense(shown(tensor)); }

at::Tensor as_strided(const at::Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, sizes, strides, offset);
}

at::Tensor& set_storage_at(at::Tensor& tensor, at::Storage storage, int64_t offset, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  auto* held = tensor.unsafeGetTensorImpl();
  held->set_storage_keep_dtype(storage);
  held->set_storage_offset(offset);
  held->set_sizes_and_strides(sizes, strides);
  return tensor;
}

at::Tensor& set_storage(at::Tensor& tensor, at::Storage storage) {
  return set_storage_at(tensor, storage, 0, {static_cast<int64_t>(storage.nbytes() / tensor.dtype().itemsize())}, {1});
}

at::Tensor& set_tensor(at::Tensor& tensor, const at::Tensor& other) {
  return set_storage_at(tensor, other.storage(), other.storage_offset(), other.sizes(), other.strides());
}

at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias, c10::IntArrayRef stride,
                       c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding,
                       int64_t groups) {
  bool biased = bias.has_value() && bias->defined();
  TORCH_CHECK(x.device() == weight.device() && (!biased || bias->device() == x.device()), "MIXED DEVICES in aten::convolution");
  std::optional<at::Tensor> added;
  if (biased) added = shown(*bias);
  return at::convolution(shown(x), shown(weight), added, stride, padding, dilation, transposed, output_padding, groups).to(x.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight, c10::IntArrayRef stride, c10::IntArrayRef padding,
    c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> wanted) {
  TORCH_CHECK(x.device() == weight.device() && gradient.device() == x.device(), "MIXED DEVICES in aten::convolution_backward");
  auto bias_sizes = c10::IntArrayRef{weight.size(0)};
  auto [of_x, of_weight, of_bias] = at::convolution_backward(shown(gradient), shown(x), shown(weight), bias_sizes, stride, padding,
                                                             dilation, transposed, output_padding, groups, wanted);
  auto back = [&](const at::Tensor& tensor) { return tensor.defined() ? tensor.to(x.device()) : tensor; };
  return {back(of_x), back(of_weight), back(of_bias)};
}

// Every other operator: the processor's, once it is clear that CUDA would take these arguments.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& name = op.schema().operator_name().name;
  bool here = false, there = false, generator = false;
  std::ostringstream met;
  auto look = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    if (tensor.device().type() == KIND) here = true;
    else if (tensor.dim() > 0) there = true;
    met << " " << tensor.device() << tensor.sizes();
  };
  for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (value.isTensor()) look(value.toTensor());
    else if (value.isTensorList()) for (const at::Tensor& tensor : value.toTensorVector()) look(tensor);
    else if (value.isOptionalTensorList()) for (const auto& tensor : value.toOptionalTensorVector()) { if (tensor) look(*tensor); }
    else if (value.isGenerator() && value.toGenerator().defined()) generator |= value.toGenerator().device().is_cpu();
  }
  bool may_mix = std::find(MAY_MIX.begin(), MAY_MIX.end(), name) != MAY_MIX.end();
  TORCH_CHECK(!(here && there) || may_mix, "MIXED DEVICES in ", name, ":", met.str());
  TORCH_CHECK(!(here && generator), "A GENERATOR OF THE PROCESSOR in ", name, ":", met.str());
  at::native::cpu_fallback(op, stack);
}
}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("resize_", &::resize);
  library.impl("_local_scalar_dense", &item);
  library.impl("as_strided", &as_strided);
  library.impl("view", &at::native::view);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("unfold", &at::native::unfold);
  library.impl("set_.source_Storage_storage_offset", &set_storage_at);
  library.impl("set_.source_Storage", &set_storage);
  library.impl("set_.source_Tensor", &set_tensor);
  library.impl("convolution_overrideable", &convolution);
  library.impl("convolution_backward_overrideable", &convolution_backward);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) { c10::SetAllocator(KIND, &memory); }
