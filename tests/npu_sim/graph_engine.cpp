// A graph engine (GE) in the place of CANN's: what torchair's libraries ask of namespace ge. It keeps graphs as the bytes that it is
// given, and has two functions of graph_engine.py compile and run them. Layouts are those that the libraries rely on: each class is
// one shared_ptr, a Session one number. Built with the old ABI of std::string, as CANN is.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace ge {
using Status = uint32_t;
constexpr Status kSuccess = 0, kFailed = 1;
enum DataType : int {};
enum Format : int {};
enum Placement : int { kHost = 0, kDevice = 1 };

class AscendString {
 public:
  AscendString() = default;
  AscendString(const char* text);
  const char* GetString() const;
  bool operator<(const AscendString& other) const;
  bool operator==(const AscendString& other) const;

 private:
  std::shared_ptr<std::string> text_;
};
AscendString::AscendString(const char* text) : text_(std::make_shared<std::string>(text ? text : "")) {}
const char* AscendString::GetString() const { return text_ ? text_->c_str() : ""; }
bool AscendString::operator<(const AscendString& other) const { return std::strcmp(GetString(), other.GetString()) < 0; }
bool AscendString::operator==(const AscendString& other) const { return std::strcmp(GetString(), other.GetString()) == 0; }
using Options = std::map<AscendString, AscendString>;

class Shape {
 public:
  Shape(const std::vector<int64_t>& dims);
  std::vector<int64_t> GetDims() const;

 private:
  std::shared_ptr<std::vector<int64_t>> dims_;
};
Shape::Shape(const std::vector<int64_t>& dims) : dims_(std::make_shared<std::vector<int64_t>>(dims)) {}
std::vector<int64_t> Shape::GetDims() const { return dims_ ? *dims_ : std::vector<int64_t>{}; }

struct Description {
  std::vector<int64_t> dims, origin;
  int dtype = 0, format = 2, placement = kHost;
};
class TensorDesc {
 public:
  TensorDesc();
  void SetDataType(DataType value);
  void SetFormat(Format value);
  void SetOriginFormat(Format value);
  void SetOriginShape(const Shape& value);
  void SetPlacement(Placement value);
  DataType GetDataType() const;
  Format GetFormat() const;
  Placement GetPlacement() const;
  Shape GetShape() const;
  std::shared_ptr<Description> is;
};
TensorDesc::TensorDesc() : is(std::make_shared<Description>()) {}
void TensorDesc::SetDataType(DataType value) { is->dtype = value; }
void TensorDesc::SetFormat(Format value) { is->format = value; }
void TensorDesc::SetOriginFormat(Format) {}
void TensorDesc::SetOriginShape(const Shape& value) { is->origin = value.GetDims(); }
void TensorDesc::SetPlacement(Placement value) { is->placement = value; }
DataType TensorDesc::GetDataType() const { return DataType(is->dtype); }
Format TensorDesc::GetFormat() const { return Format(is->format); }
Placement TensorDesc::GetPlacement() const { return Placement(is->placement); }
Shape TensorDesc::GetShape() const { return Shape(is->dims); }

using Free = std::function<void(uint8_t*)>;
struct Memory {
  TensorDesc desc;
  uint8_t* data = nullptr;
  size_t size = 0;
  Free free;
  void Give(uint8_t* to, size_t bytes, const Free& by) {
    if (free && data) free(data);
    data = to, size = bytes, free = by;
  }
  ~Memory() {
    if (free && data) free(data);
  }
};
class Tensor {
 public:
  Tensor();
  Status SetData(uint8_t* data, size_t size, const Free& free);
  Status ResetData(uint8_t* data, size_t size, const Free& free);
  std::unique_ptr<uint8_t[], Free> ResetData();
  uint8_t* GetData();
  const uint8_t* GetData() const;
  Status SetDataType(const DataType& value);
  Status SetFormat(const Format& value);
  Status SetPlacement(const Placement& value);
  Status SetTensorDesc(const TensorDesc& value);
  Status SetShapeDimNum(size_t count);
  Status SetShapeDim(size_t index, int64_t value);
  Status SetOriginShapeDimNum(size_t count);
  Status SetOriginShapeDim(size_t index, int64_t value);
  size_t GetShapeDimNum() const;
  int64_t GetShapeDim(size_t index) const;
  size_t GetOriginShapeDimNum() const;
  DataType GetDataType() const;
  Format GetFormat() const;
  Placement GetPlacement() const;
  TensorDesc GetTensorDesc() const;
  Description& About() const { return *memory->desc.is; }
  std::shared_ptr<Memory> memory;
};
Tensor::Tensor() : memory(std::make_shared<Memory>()) {}
Status Tensor::SetData(uint8_t* data, size_t size, const Free& free) { return memory->Give(data, size, free), kSuccess; }
Status Tensor::ResetData(uint8_t* data, size_t size, const Free& free) { return SetData(data, size, free); }
std::unique_ptr<uint8_t[], Free> Tensor::ResetData() {
  std::unique_ptr<uint8_t[], Free> owner(memory->data, memory->free);
  memory->data = nullptr, memory->size = 0, memory->free = nullptr;
  return owner;
}
uint8_t* Tensor::GetData() { return memory->data; }
const uint8_t* Tensor::GetData() const { return memory->data; }
Status Tensor::SetDataType(const DataType& value) { return About().dtype = value, kSuccess; }
Status Tensor::SetFormat(const Format& value) { return About().format = value, kSuccess; }
Status Tensor::SetPlacement(const Placement& value) { return About().placement = value, kSuccess; }
Status Tensor::SetTensorDesc(const TensorDesc& value) { return About() = *value.is, kSuccess; }
Status Tensor::SetShapeDimNum(size_t count) { return About().dims.resize(count), kSuccess; }
Status Tensor::SetShapeDim(size_t index, int64_t value) { return About().dims[index] = value, kSuccess; }
Status Tensor::SetOriginShapeDimNum(size_t count) { return About().origin.resize(count), kSuccess; }
Status Tensor::SetOriginShapeDim(size_t index, int64_t value) { return About().origin[index] = value, kSuccess; }
size_t Tensor::GetShapeDimNum() const { return About().dims.size(); }
int64_t Tensor::GetShapeDim(size_t index) const { return About().dims[index]; }
size_t Tensor::GetOriginShapeDimNum() const { return About().origin.size(); }
DataType Tensor::GetDataType() const { return memory->desc.GetDataType(); }
Format Tensor::GetFormat() const { return memory->desc.GetFormat(); }
Placement Tensor::GetPlacement() const { return memory->desc.GetPlacement(); }
TensorDesc Tensor::GetTensorDesc() const { return memory->desc; }

class GNode {
 public:
  Status GetType(AscendString& type) const;
  std::shared_ptr<void> is_;
};
Status GNode::GetType(AscendString&) const { return kSuccess; }
class Graph {
 public:
  Graph(const char* name);
  Status LoadFromSerializedModelArray(const void* data, size_t size);
  std::vector<GNode> GetAllNodes() const;
  Status CopyFrom(const Graph& other);
  Status SaveToFile(const char* path) const;
  std::shared_ptr<std::string> bytes;
};
Graph::Graph(const char*) : bytes(std::make_shared<std::string>()) {}
Status Graph::LoadFromSerializedModelArray(const void* data, size_t size) {
  if (!bytes) bytes = std::make_shared<std::string>();
  return bytes->assign(static_cast<const char*>(data), size), kSuccess;
}
std::vector<GNode> Graph::GetAllNodes() const { return {}; }
Status Graph::CopyFrom(const Graph& other) { return *bytes = *other.bytes, kSuccess; }
Status Graph::SaveToFile(const char*) const { return kSuccess; }

// --- the two functions of graph_engine.py; both return 0 for success ---
struct Plain {
  uint8_t* data;
  int64_t dims[8];
  int32_t rank, dtype;
};
using CompileFunction = int (*)(uint32_t graph, const char* bytes, uint64_t size, const char* options);
using RunFunction = int (*)(uint32_t graph, const Plain* inputs, int32_t count, Plain* outputs, int32_t results);
static CompileFunction compile_graph;
static RunFunction run_graph;
extern "C" __attribute__((visibility("default"))) void graph_engine_install(CompileFunction compile, RunFunction run) {
  compile_graph = compile, run_graph = run;
}

class CompiledGraphSummary {  // a dynamic graph, whose memory the engine provides
 public:
  bool IsStatic() const;
  Status GetConstMemorySize(size_t& size) const;
  Status GetFeatureMemorySize(size_t& size) const;
  Status GetFixedFeatureMemorySize(size_t& size) const;
  Status GetFeatureMemoryBaseRefreshable(bool& can) const;
  Status GetOutputShapes(std::vector<Shape>& shapes) const;
  Status GetOutputDtypes(std::vector<DataType>& dtypes) const;
};
bool CompiledGraphSummary::IsStatic() const { return false; }
Status CompiledGraphSummary::GetConstMemorySize(size_t& size) const { return size = 512, kSuccess; }
Status CompiledGraphSummary::GetFeatureMemorySize(size_t& size) const { return size = 512, kSuccess; }
Status CompiledGraphSummary::GetFixedFeatureMemorySize(size_t& size) const { return size = 512, kSuccess; }
Status CompiledGraphSummary::GetFeatureMemoryBaseRefreshable(bool& can) const { return can = false, kSuccess; }
Status CompiledGraphSummary::GetOutputShapes(std::vector<Shape>&) const { return kSuccess; }
Status CompiledGraphSummary::GetOutputDtypes(std::vector<DataType>&) const { return kSuccess; }

struct Added {
  std::string bytes, options;
};
static std::map<uint32_t, Added> added;
static std::string Lines(const Options& options) {
  std::string lines;
  for (auto& each : options) lines += std::string(each.first.GetString()) + "=" + each.second.GetString() + "\n";
  return lines;
}
class Allocator;
class Session {
 public:
  explicit Session(const Options& options);
  ~Session();
  Status AddGraph(uint32_t id, const Graph& graph, const Options& options);
  Status CompileGraph(uint32_t id);
  std::shared_ptr<CompiledGraphSummary> GetCompiledGraphSummary(uint32_t id);
  Status RemoveGraph(uint32_t id);
  Status RegisterExternalAllocator(const void* stream, std::shared_ptr<Allocator> allocator) const;
  Status RunGraph(uint32_t id, const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs);
  Status RunGraphWithStreamAsync(uint32_t id, void* stream, const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs);
  Status SetGraphConstMemoryBase(uint32_t id, const void* memory, size_t size);
  Status SetGraphFixedFeatureMemoryBase(uint32_t id, const void* memory, size_t size);
  Status UpdateGraphFeatureMemoryBase(uint32_t id, const void* memory, size_t size);
  Status UpdateGraphRefreshableFeatureMemoryBase(uint32_t id, const void* memory, size_t size);
  uint64_t number_;
};
Session::Session(const Options&) : number_(1) {}
Session::~Session() {}
Status Session::AddGraph(uint32_t id, const Graph& graph, const Options& options) {
  return added[id] = {*graph.bytes, Lines(options)}, kSuccess;
}
Status Session::CompileGraph(uint32_t id) {
  auto& graph = added[id];
  return compile_graph ? compile_graph(id, graph.bytes.data(), graph.bytes.size(), graph.options.c_str()) : kFailed;
}
std::shared_ptr<CompiledGraphSummary> Session::GetCompiledGraphSummary(uint32_t) { return std::make_shared<CompiledGraphSummary>(); }
Status Session::RemoveGraph(uint32_t id) { return added.erase(id), kSuccess; }
Status Session::RegisterExternalAllocator(const void*, std::shared_ptr<Allocator>) const { return kSuccess; }
static Plain PlainOf(const Tensor& tensor) {
  auto& about = tensor.About();
  Plain plain{tensor.memory->data, {}, static_cast<int32_t>(about.dims.size()), about.dtype};
  for (int32_t i = 0; i < plain.rank && i < 8; ++i) plain.dims[i] = about.dims[i];
  return plain;
}
Status Session::RunGraphWithStreamAsync(uint32_t id, void*, const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
  std::vector<Plain> given, made;
  for (auto& each : inputs) given.push_back(PlainOf(each));
  for (auto& each : outputs) made.push_back(PlainOf(each));
  if (!run_graph || run_graph(id, given.data(), given.size(), made.data(), made.size())) return kFailed;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].memory->data == made[i].data) continue;  // memory of the caller's, which has been written to
    auto& about = outputs[i].About();
    about.dims.assign(made[i].dims, made[i].dims + made[i].rank);
    about.dtype = made[i].dtype, about.placement = kDevice;
    size_t bytes = 8;
    for (auto dim : about.dims) bytes *= dim;
    outputs[i].SetData(made[i].data, bytes, [](uint8_t* data) { std::free(data); });
  }
  return kSuccess;
}
Status Session::RunGraph(uint32_t id, const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
  return RunGraphWithStreamAsync(id, nullptr, inputs, outputs);
}
Status Session::SetGraphConstMemoryBase(uint32_t, const void*, size_t) { return kSuccess; }
Status Session::SetGraphFixedFeatureMemoryBase(uint32_t, const void*, size_t) { return kSuccess; }
Status Session::UpdateGraphFeatureMemoryBase(uint32_t, const void*, size_t) { return kSuccess; }
Status Session::UpdateGraphRefreshableFeatureMemoryBase(uint32_t, const void*, size_t) { return kSuccess; }

static std::string& Started() {
  static std::string lines;
  return lines;
}
extern "C" __attribute__((visibility("default"))) const char* graph_engine_started() { return Started().c_str(); }
Status GEInitialize(const Options& options) { return Started() = Lines(options), kSuccess; }
Status GEFinalize() { return kSuccess; }
AscendString GEGetWarningMsgV2() { return AscendString(""); }
std::string GEGetErrorMsg() { return "the simulated graph engine has no message"; }
}  // namespace ge
