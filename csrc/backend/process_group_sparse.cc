// all_reduce of sparse tensors: every member gets all indices and values and adds them in rank
// order.

#include <numeric>
#include <utility>

#include "backend/process_group_call.h"
#include "backend/tensors.h"
#include "backend/without_gil.h"
#include "transport/frames/frame.h"

namespace topoopt {
namespace {

// A hash of the values that must be equal on all members.
int64_t shapeOf(const at::Tensor& tensor) {
  uint64_t hash = mixHash(tensor.sparse_dim(), static_cast<uint64_t>(tensor.scalar_type()));
  for (const int64_t size : tensor.sizes()) hash = mixHash(hash, static_cast<uint64_t>(size));
  return static_cast<int64_t>(hash);
}

std::vector<size_t> scaled(const std::vector<int64_t>& counts, size_t factor) {
  std::vector<size_t> products;
  for (const int64_t count : counts) products.push_back(static_cast<size_t>(count) * factor);
  return products;
}

// Returns a buffer with one block per member and `own` in its place.
at::Tensor gatherBuffer(const at::Tensor& own, const std::vector<size_t>& bytes, int rank) {
  const size_t total = std::accumulate(bytes.begin(), bytes.end(), size_t{0});
  const size_t before = std::accumulate(bytes.begin(), bytes.begin() + rank, size_t{0});
  const at::Tensor buffer = flatLike(own, static_cast<int64_t>(total / own.element_size()));
  copyBytes(bytesOf(buffer) + before, bytesOf(own), own.nbytes());
  return buffer;
}

// Returns the sum of the contributions of `counts.size()` members; their mean if `average`.
at::Tensor sum(const at::Tensor& like, const at::Tensor& indices, const at::Tensor& values,
               const std::vector<int64_t>& counts, bool average) {
  const int64_t sparse_dim = like.sparse_dim();
  std::vector<int64_t> value_shape = like._values().sizes().vec();
  const int64_t row = c10::multiply_integers(value_shape.begin() + 1, value_shape.end());
  at::Tensor total;
  int64_t before = 0;
  for (const int64_t count : counts) {
    value_shape[0] = count;
    const at::Tensor part = at::_sparse_coo_tensor_unsafe(
        indices.narrow(0, before * sparse_dim, count * sparse_dim).view({sparse_dim, count}),
        values.narrow(0, before * row, count * row).view(value_shape), like.sizes(),
        like.options());
    part._coalesced_(true);
    total = total.defined() ? (total + part).coalesce() : part.clone();
    before += count;
  }
  return average ? total / static_cast<int64_t>(counts.size()) : total;
}

}  // namespace

// Exchanges the members' numbers of entries. It blocks, because later operations depend on them and
// must be called in the same order everywhere.
std::vector<int64_t> ProcessGroupTopoopt::shareSparseSizes(const at::Tensor& tensor,
                                                           std::chrono::milliseconds limit) {
  const at::Tensor own = at::tensor({tensor._nnz(), shapeOf(tensor)}, at::kLong);
  at::Tensor all = at::empty({getSize(), 2}, at::kLong);
  Call call(*this, {c10d::OpType::_ALLGATHER_BASE, nullptr}, {own}, {all}, {limit, true});
  addAllGather(call, all, own);
  {
    const WithoutGil without_gil;
    call.work().wait(::kNoTimeout);
  }
  std::vector<int64_t> counts;
  for (int rank = 0; rank < getSize(); ++rank) {
    TORCH_CHECK_VALUE(all[rank][1].item<int64_t>() == own[1].item<int64_t>(),
                      "topoopt: all_reduce: the sparse tensor of rank ", rank,
                      " has another shape or type than that of rank ", getRank());
    counts.push_back(all[rank][0].item<int64_t>());
  }
  return counts;
}

ProcessGroupTopoopt::WorkPtr ProcessGroupTopoopt::sparseAllReduce(
    Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor tensor = tensors[0];
  TORCH_CHECK_VALUE(tensor.device().is_cpu(), "topoopt: all_reduce takes sparse tensors on the ",
                    "CPU, got one on ", tensor.device(), "; move it to the CPU first");
  const bool average = options.reduceOp.op_ == c10d::ReduceOp::AVG;
  TORCH_CHECK_VALUE(average || options.reduceOp.op_ == c10d::ReduceOp::SUM,
                    "topoopt: all_reduce of sparse tensors can sum and average only");
  const at::Tensor own = tensor.detach().coalesce();
  const std::vector<int64_t> counts = shareSparseSizes(own, options.timeout);
  Call call(*this, {c10d::OpType::ALLREDUCE, "topoopt:sparse_all_reduce"}, std::nullopt, tensors,
            tensors, termsOf(options), 2);
  const at::Tensor own_indices = own._indices().contiguous();
  const at::Tensor own_values = own._values().contiguous();
  const auto row_bytes =
      own_values.element_size() *
      c10::multiply_integers(own_values.sizes().begin() + 1, own_values.sizes().end());
  const std::vector<size_t> index_bytes = scaled(counts, own.sparse_dim() * sizeof(int64_t));
  const std::vector<size_t> value_bytes = scaled(counts, static_cast<size_t>(row_bytes));
  const at::Tensor indices = gatherBuffer(own_indices, index_bytes, getRank());
  const at::Tensor values = gatherBuffer(own_values, value_bytes, getRank());
  const HostCall& host = call.hostCall();
  host.finish([tensor, own, indices, values, counts, average] {
    const at::NoGradGuard no_grad;  // a detached tensor has its own entries
    tensor.copy_(sum(own, indices, values, counts, average));
  });
  group_->allGather(bytesOf(indices), index_bytes, host.terms.of(elementTypeOf(indices)),
                    host.done);
  group_->allGather(bytesOf(values), value_bytes, host.terms.of(elementTypeOf(values)), host.done);
  return call.submit();
}

}  // namespace topoopt
