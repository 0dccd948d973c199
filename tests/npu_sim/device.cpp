// A simulated NPU for torch_npu over the stub runtime: "device memory" is host memory, so every ATen kernel registered for
// PrivateUse1 is replaced by one that runs the CPU kernel on CPU aliases of the same addresses.
// Capture: kernels called while aclmdlRICaptureBegin..End is open, on a stream that takes part, are RECORDED (raw addresses, no ownership), not executed:
// functional outputs are filled with 0xFF bytes, mutated arguments keep their old contents.  aclmdlRIExecuteAsync runs the record.
// graph_task_update_begin/end replaces the arguments of the recorded ops of that task group.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/TensorConversions.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>
#include <unordered_map>
#include <cstring>
#include <cstdio>
#include <set>
#include <dlfcn.h>
#include <fstream>
#include <sstream>
extern "C" {
extern __thread void *npu_stub_active_ri, *npu_stub_active_grp, *npu_stub_update_grp;
typedef void (*npu_stub_hook)(void*);
extern npu_stub_hook npu_stub_on_execute, npu_stub_on_destroy;
extern void (*npu_stub_on_memcpy)(void*, const void*, unsigned long);
void npu_stub_note(const char* what, const void* on, const void* stream);
extern void (*npu_stub_on_value)(void*, uint64_t, int);
extern long npu_stub_waiting;
void* npu_stub_issue(const void* stream);
extern char npu_stub_dump_folder[];
}
using c10::IValue; using c10::Stack; using at::Tensor;
namespace {
long n_exec = 0, n_rec = 0, n_replayed = 0, n_updated = 0;
enum Kind { CALL, COPY, WAIT, WRITE };
struct Rec { c10::OperatorHandle op; Stack args; std::vector<Tensor> outs; void* grp; void* d; const void* s; unsigned long n; Kind kind = CALL; };
std::unordered_map<void*, std::vector<Rec>> graphs;
struct Suspended { void* ri; size_t at; };
std::vector<Suspended> suspended;             // graphs that wait for a value, in the order of their replays
c10::optional<c10::OperatorHandle> dummy;

bool is_npu(const Tensor& t) { return t.defined() && t.device().type() == c10::DeviceType::PrivateUse1; }
Tensor cpu_alias(const Tensor& t) {           // CPU tensor on the same memory, no ownership
  if (!is_npu(t)) return t;
  auto o = at::TensorOptions().dtype(t.dtype()).device(at::kCPU);
  if (t.numel() == 0 && t.data_ptr() == nullptr) return at::empty_strided(t.sizes(), t.strides(), o);
  return at::from_blob(t.data_ptr(), t.sizes(), t.strides(), o);
}
IValue conv(const IValue& v, bool& any) {
  if (v.isTensor()) { if (is_npu(v.toTensor())) any = true; return cpu_alias(v.toTensor()); }
  if (v.isDevice() && v.toDevice().type() == c10::DeviceType::PrivateUse1) return c10::Device(at::kCPU);
  if (v.isGenerator()) return IValue();
  if (v.isTensorList()) { c10::List<Tensor> l; for (Tensor t : v.toTensorList()) { if (is_npu(t)) any = true; l.push_back(cpu_alias(t)); } return l; }
  if (v.isOptionalTensorList()) { c10::List<std::optional<Tensor>> l; for (std::optional<Tensor> t : v.toOptionalTensorList()) { if (t && is_npu(*t)) any = true; l.push_back(t ? std::optional<Tensor>(cpu_alias(*t)) : std::nullopt); } return l; }
  return v;
}
const c10::DispatchKeySet kCPU(c10::DispatchKey::CPU);
void call_cpu(const c10::OperatorHandle& op, Stack* s) { op.redispatchBoxed(kCPU, s); }
// The device of a call: the one it asks for, else that of its first tensor with dimensions, else of any, else the current one.
c10::Device device_of(const c10::FunctionSchema& schema, const std::vector<IValue>& args) {
  const auto kind = c10::DeviceType::PrivateUse1;
  const bool copies = schema.name().find("copy") != std::string::npos;
  c10::DeviceIndex found = -1; bool scalar = true;
  auto look = [&](const Tensor& t) {
    if (!is_npu(t)) return;
    const bool clash = found >= 0 && !scalar && t.dim() && t.device().index() != found;
    TORCH_CHECK(copies || !clash, schema.name(), ": expected all tensors to be on the same device, but found npu:", int(found), " and npu:", int(t.device().index()));
    if (found < 0 || (scalar && t.dim())) { found = t.device().index(); scalar = !t.dim(); }
  };
  for (auto& v : args) {
    if (v.isDevice() && v.toDevice().type() == kind && v.toDevice().has_index()) return v.toDevice();
    if (v.isTensor()) look(v.toTensor());
    else if (v.isTensorList()) for (Tensor t : v.toTensorList()) look(t);
    else if (v.isOptionalTensorList()) for (std::optional<Tensor> t : v.toOptionalTensorList()) if (t) look(*t);
  }
  return {kind, found < 0 ? c10::impl::VirtualGuardImpl(kind).getDevice().index() : found};
}
Tensor to_npu(const Tensor& r, bool poison, std::vector<Tensor>* outs, c10::Device device) {
  if (!r.defined()) { if (outs) outs->push_back(r); return r; }
  Tensor o = at::empty_strided(r.sizes(), r.strides(), r.options().device(device).pinned_memory(false));
  Tensor a = cpu_alias(o);
  if (poison) { if (o.numel()) std::memset(o.data_ptr(), 0xFF, at::detail::computeStorageNbytes(r.sizes(), r.strides(), r.dtype().itemsize())); }
  else a.copy_(r);
  if (outs) outs->push_back(a);
  return o;
}
void* current_stream() { return c10_npu::getCurrentNPUStream().stream(false); }
uint32_t deterministic_level() {              // what torch_npu's kernels ask for whenever they are issued
  static auto asked = (uint32_t (*)())dlsym(dlopen("libtorch_npu.so", RTLD_NOLOAD | RTLD_LAZY), "_ZN7c10_npu21GetDeterministicLevelEv");
  TORCH_CHECK(asked, "npu sim: libtorch_npu.so has no GetDeterministicLevel");
  return asked();
}
// What a static kernel would be compiled for, as CANN writes it while operators are dumped: one file per operator that ran.
void describe(std::ostream& o, const IValue& v) {
  if (v.isTensor()) {
    const Tensor& t = v.toTensor(); if (!t.defined()) { o << "null"; return; }
    o << "{\"dtype\": \"" << t.dtype() << "\", \"shape\": " << t.sizes() << ", \"stride\": " << t.strides() << "}";
  } else if (v.isTensorList()) { o << "["; bool more = false; for (Tensor t : v.toTensorList()) { if (more) o << ", "; more = true; describe(o, t); } o << "]"; }
  else { std::ostringstream s; s << v; o << '"'; for (char c : s.str()) if (c != '"' && c != '\\' && c >= ' ') o << c; o << '"'; }
}
void dump(const c10::FunctionSchema& schema, const std::vector<IValue>& given) {
  static long n = 0;
  std::string name = schema.name().substr(schema.name().find("::") + 2);
  std::ofstream o(std::string(npu_stub_dump_folder) + "/" + name + "_" + std::to_string(n++) + ".json");
  o << "{\"op\": \"" << name << "\", \"overload\": \"" << schema.overload_name() << "\", \"arguments\": [";
  for (size_t i = 0; i < given.size(); i++) { if (i) o << ", "; describe(o, given[i]); }
  o << "]}\n";
}
void sim(const c10::OperatorHandle& op, Stack* stack) {
  const auto& sc = op.schema(); const size_t na = sc.arguments().size();
  std::vector<IValue> orig(stack->end() - na, stack->end());
  const c10::Device device = device_of(sc, orig);
  const c10::OptionalDeviceGuard on_device(device);
  void* const stream = current_stream();
  if (const uint32_t level = deterministic_level()) npu_stub_note("deterministic", (void*)(size_t)level, stream);
  npu_stub_note(op.schema().name().c_str(), nullptr, stream);
  stack->erase(stack->end() - na, stack->end());
  bool any = false; Stack cs; cs.reserve(na);
  for (auto& v : orig) cs.push_back(conv(v, any));
  void* ri = npu_stub_issue(stream); void* upd = npu_stub_update_grp;
  const bool dry = ri || upd;
  const bool out_list = na && sc.arguments()[na - 1].name() == "out" && orig[na - 1].isTensorList();   // written and returned, says no annotation
  if (dry && (sc.name() == "aten::_local_scalar_dense")) TORCH_CHECK(false, "npu sim: host read of a device value during capture");
  Stack run;
  bool all_alias = !sc.returns().empty();
  for (auto& r : sc.returns()) if (!(r.alias_info() && r.alias_info()->isWrite())) all_alias = false;
  if (dry) {                                        // shapes only: nothing is executed on the captured memory
    for (size_t i = 0; i < na; i++) {
      auto ai = sc.arguments()[i].alias_info(); bool w = (ai && ai->isWrite()) || (out_list && i == na - 1);
      auto safe = [&](const Tensor& t) { return !t.defined() ? t : at::isIntegralType(t.scalar_type(), false) ? at::zeros_like(t) : w ? t.clone() : t; };   // index 0 is always valid
      if (cs[i].isTensor()) run.push_back(safe(cs[i].toTensor()));
      else if (cs[i].isTensorList()) { c10::List<Tensor> l; for (Tensor t : cs[i].toTensorList()) l.push_back(safe(t)); run.push_back(l); }
      else if (cs[i].isOptionalTensorList()) { c10::List<std::optional<Tensor>> l; for (std::optional<Tensor> t : cs[i].toOptionalTensorList()) l.push_back(t ? std::optional<Tensor>(safe(*t)) : std::nullopt); run.push_back(l); }
      else run.push_back(cs[i]);
    }
  } else run = cs;
  if (dry && all_alias) { run.resize(sc.returns().size()); for (size_t i = 0; i < run.size(); i++) for (size_t j = 0; j < na; j++) { auto aa = sc.arguments()[j].alias_info(); if (aa && aa->beforeSets() == sc.returns()[i].alias_info()->beforeSets()) { run[i] = orig[j]; break; } } }
  else { call_cpu(op, &run); n_exec++; }
  if (npu_stub_dump_folder[0] && !dry) dump(sc, orig);
  // after the kernel has accepted them
  if (upd) {                                        // task update: replace the arguments of the group's record(s)
    for (auto& g : graphs) for (auto& r : g.second) if (r.grp == upd && r.op.operator_name() == op.operator_name()) { r.args = cs; n_updated++; }
  }
  Rec rec{op, ri ? cs : Stack(), {}, npu_stub_active_grp, nullptr, nullptr, 0};
  auto* outs = ri ? &rec.outs : nullptr;
  for (size_t i = 0; i < sc.returns().size(); i++) {
    auto ra = sc.returns()[i].alias_info();
    if (out_list) { stack->push_back(orig[na - 1].toTensorList().get(i)); if (outs) outs->push_back(Tensor()); }
    else if (ra && ra->isWrite()) {
      for (size_t j = 0; j < na; j++) { auto aa = sc.arguments()[j].alias_info(); if (aa && aa->beforeSets() == ra->beforeSets()) {
        if (run[i].isTensor() && is_npu(orig[j].toTensor()) && orig[j].toTensor().sizes() != run[i].toTensor().sizes()) {   // out= resize
          Tensor t = orig[j].toTensor(); t.resize_(run[i].toTensor().sizes()); cpu_alias(t).copy_(run[i].toTensor()); }
        stack->push_back(orig[j]); break; } }
      if (outs) outs->push_back(Tensor());
    } else if (run[i].isTensor()) stack->push_back(to_npu(run[i].toTensor(), dry, outs, device));
    else if (run[i].isTensorList()) { c10::List<Tensor> l; for (Tensor t : run[i].toTensorList()) l.push_back(to_npu(t, dry, outs, device)); stack->push_back(l); }
    else stack->push_back(run[i]);
  }
  if (ri) { graphs[ri].push_back(std::move(rec)); n_rec++; }
}
void run_from(void* ri, size_t at) {
  at::AutoDispatchBelowADInplaceOrView guard;
  auto it = graphs.find(ri); if (it == graphs.end()) return;
  for (; at < it->second.size(); at++) {
    auto& r = it->second[at];
    if (r.kind == COPY) { std::memmove(r.d, r.s, r.n); continue; }
    if (r.kind == WRITE) { *(uint64_t*)r.d = r.n; continue; }
    if (r.kind == WAIT) {
      if (*(uint64_t*)r.d == r.n) continue;
      suspended.push_back({ri, at}); npu_stub_waiting++; return;
    }
    Stack s = r.args; call_cpu(r.op, &s); n_replayed++;
    size_t k = 0;
    for (auto& v : s) {
      if (v.isTensor()) { if (k < r.outs.size() && r.outs[k].defined()) r.outs[k].copy_(v.toTensor()); k++; }
      else if (v.isTensorList()) for (Tensor t : v.toTensorList()) { if (k < r.outs.size() && r.outs[k].defined()) r.outs[k].copy_(t); k++; }
    }
  }
}
void on_execute(void* ri) { run_from(ri, 0); }
void on_value(void* address, uint64_t value, int waits) {
  if (npu_stub_active_ri) {
    static auto h = c10::Dispatcher::singleton().findSchemaOrThrow("aten::clone", "");
    graphs[npu_stub_active_ri].push_back(Rec{h, {}, {}, nullptr, address, nullptr, value, waits ? WAIT : WRITE}); return;
  }
  if (waits) return;                            // streams are synchronous
  *(uint64_t*)address = value;
  auto waiting = std::move(suspended); suspended.clear();
  for (auto& w : waiting) { npu_stub_waiting--; run_from(w.ri, w.at); }
}
void on_destroy(void* ri) { graphs.erase(ri); }
void on_memcpy(void* d, const void* s, unsigned long n) {
  static auto h = c10::Dispatcher::singleton().findSchemaOrThrow("aten::clone", "");
  graphs[npu_stub_active_ri].push_back(Rec{h, {}, {}, nullptr, d, s, n, COPY});
}
Tensor to_copy(const Tensor& self, std::optional<at::ScalarType> dt, std::optional<at::Layout> ly, std::optional<at::Device> dv, std::optional<bool> pin, bool nb, std::optional<at::MemoryFormat> mf) {
  auto d = dv.value_or(self.device());
  const c10::OptionalDeviceGuard on_device(is_npu(self) && d.type() == c10::DeviceType::CPU ? self.device() : d);
  auto o = self.options().dtype(dt.value_or(self.scalar_type())).device(d).pinned_memory(false);
  Tensor r = (mf.value_or(at::MemoryFormat::Preserve) == at::MemoryFormat::Preserve && self.is_non_overlapping_and_dense())
      ? at::empty_strided(self.sizes(), self.strides(), o) : at::empty(self.sizes(), o, mf && *mf != at::MemoryFormat::Preserve ? mf : std::nullopt);
  r.copy_(self); return r;
}
std::unique_ptr<torch::Library> lib, alib;
std::vector<std::unique_ptr<torch::Library>> routed;
int64_t sdp_choice(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool, std::optional<double>, bool) { return 0; }  // math
} // namespace
// Run another operator's kernel for the CPU on the device too, recorded and updated like ATen's.
extern "C" __attribute__((visibility("default"))) void npu_sim_route(const char* space, const char* name) {
  routed.push_back(std::make_unique<torch::Library>(torch::Library::IMPL, space, std::make_optional(c10::DispatchKey::PrivateUse1), __FILE__, __LINE__));
  routed.back()->impl(name, torch::CppFunction::makeFromBoxedFunction<&sim>());
}
extern "C" __attribute__((visibility("default"))) void npu_sim_stats(long* o) { o[0] = n_exec; o[1] = n_rec; o[2] = n_replayed; o[3] = n_updated; o[4] = (long)graphs.size(); }
extern "C" __attribute__((visibility("default"))) int npu_sim_install(int verbose) {
  static const std::set<std::string> keep = {"empty", "empty_strided", "as_strided", "as_strided_", "view", "resize_", "resize_as_", "set_", "_copy_from", "_copy_from_and_resize",
    "record_stream", "is_pinned", "_pin_memory", "pin_memory", "_to_copy", "to", "detach", "detach_", "alias", "_reshape_alias", "unfold", "_has_compatible_shallow_copy_type",
    "is_set_to", "_empty_affine_quantized", "new_empty", "new_empty_strided", "empty_like", "_resize_output_", "_lazy_clone", "lift", "lift_fresh", "_fused_sdp_choice",
    "_local_scalar_dense_", "contiguous", "reshape", "matmul_backward", "squeeze", "unsqueeze", "squeeze_", "unsqueeze_", "t", "transpose", "transpose_", "permute", "expand", "_efficientzerotensor", "_foreach_copy_"};
  lib = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", std::make_optional(c10::DispatchKey::PrivateUse1), __FILE__, __LINE__);
  auto& D = c10::Dispatcher::singleton(); int n = 0;
  for (auto& name : D.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    auto base = name.name.substr(6); if (keep.count(base)) continue;
    auto h = D.findSchema(name); if (!h) continue;
    if (!h->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
    if (!h->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) && h->hasComputedKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) continue;
    bool view = false; for (auto& r : h->schema().returns()) if (r.alias_info() && !r.alias_info()->isWrite()) view = true;
    if (view) continue;
    std::string full = base + (name.overload_name.empty() ? "" : "." + name.overload_name);
    lib->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&sim>()); n++;
  }
  lib->impl("_to_copy", TORCH_FN(to_copy)); lib->impl("_fused_sdp_choice", TORCH_FN(sdp_choice));
  // torch_npu has its own attention kernel here (FlashAttentionScore of the operator library, absent): pass through to ours
  alib = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", std::make_optional(c10::DispatchKey::AutogradPrivateUse1), __FILE__, __LINE__);
  alib->impl("scaled_dot_product_attention", torch::CppFunction::makeFallthrough());
  npu_stub_on_execute = on_execute; npu_stub_on_destroy = on_destroy; npu_stub_on_memcpy = on_memcpy; npu_stub_on_value = on_value;
  if (verbose) fprintf(stderr, "npu_sim: %d ATen kernels redirected to CPU\n", n);
  return n;
}
