#include "backend/staging_call.h"

#include <algorithm>

#include "backend/tensors.h"

namespace topoopt {
namespace {

using Tensors = StagingCall::Tensors;
using Parts = StagingCall::Parts;

Parts oneAfterTheOther(const Tensors& flats) {
  Parts parts;
  int64_t offset = 0;
  for (const at::Tensor& flat : flats) {
    parts.push_back({flat, offset});
    offset += flat.numel();
  }
  return parts;
}

int64_t total(const Tensors& tensors) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) elements += tensor.numel();
  return elements;
}

}  // namespace

at::Tensor StagingCall::read(const at::Tensor& tensor) {
  return tensor.contiguous().view({tensor.numel()});
}

at::Tensor StagingCall::write(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return tensor.view({tensor.numel()});
  return spread(tensor, at::empty({tensor.numel()}, tensor.options()));
}

at::Tensor StagingCall::update(const at::Tensor& tensor) {
  return tensor.is_contiguous() ? read(tensor) : spread(tensor, read(tensor));
}

Tensors StagingCall::readAll(const Tensors& tensors) {
  Tensors flats;
  for (const at::Tensor& tensor : tensors) flats.push_back(read(tensor));
  return flats;
}

Tensors StagingCall::writeAll(const Tensors& tensors) {
  Tensors flats;
  for (const at::Tensor& tensor : tensors) flats.push_back(write(tensor));
  return flats;
}

at::Tensor StagingCall::spread(const at::Tensor& tensor, at::Tensor flat) {
  spreads_.emplace_back(tensor, flat.view(tensor.sizes()));
  return flat;
}

void StagingCall::add(std::vector<StagingBuffer> buffers, StagingPiece::Start start) {
  pieces_.push_back({std::move(buffers), std::move(start)});
}

c10::intrusive_ptr<c10d::Work> StagingCall::submitTo(Staging& staging, bool awaits_device) {
  auto operation = std::make_shared<StagingOperation>(device_, order_);
  operation->awaits_device = awaits_device;
  operation->pieces = std::move(pieces_);
  operation->spreads = std::move(spreads_);
  operation->work = work_;
  staging.submit(std::move(operation));
  return work_;
}

void forEachPiece(int64_t elements, size_t bytes,
                  const std::function<void(int64_t first, int64_t count)>& function) {
  const auto wanted = static_cast<int64_t>((bytes + kStagingPieceBytes - 1) / kStagingPieceBytes);
  const int64_t pieces = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(elements, 1));
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t first = elements * i / pieces;
    function(first, elements * (i + 1) / pieces - first);
  }
}

StagingBuffer bufferFor(const at::Tensor& flat, Parts reads, Parts writes) {
  return {flat.scalar_type(), flat.numel(), std::move(reads), std::move(writes)};
}

StagingBuffer bufferToRead(const Tensors& flats) {
  return {flats[0].scalar_type(), total(flats), oneAfterTheOther(flats), {}};
}

StagingBuffer bufferToWrite(const Tensors& flats) {
  return {flats[0].scalar_type(), total(flats), {}, oneAfterTheOther(flats)};
}

Parts partsOfBlocks(const at::Tensor& flat, int blocks, int64_t first, int64_t count) {
  const int64_t block = flat.numel() / blocks;
  if (count == block) return {{flat, 0}};
  Parts parts;
  for (int64_t i = 0; i < blocks; ++i) {
    parts.push_back({flat.narrow(0, i * block + first, count), i * count});
  }
  return parts;
}

Parts partsOf(const Tensors& flats, int64_t first, int64_t count) {
  Parts parts;
  for (const at::Tensor& flat : flats) {
    parts.push_back({flat.narrow(0, first, count), static_cast<int64_t>(parts.size()) * count});
  }
  return parts;
}

std::vector<int64_t> numels(const Tensors& tensors) {
  std::vector<int64_t> sizes;
  for (const at::Tensor& tensor : tensors) sizes.push_back(tensor.numel());
  return sizes;
}

bool sameNumels(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.numel() == tensors[0].numel();
  });
}

at::Tensor premultiplied(const at::Tensor& flat, c10d::ReduceOp& op) {
  if (op.op_ == c10d::ReduceOp::PREMUL_SUM) {
    const auto* supplement =
        static_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
    if (supplement != nullptr && supplement->tensor_factor.defined() &&
        !supplement->tensor_factor.is_cpu()) {
      TORCH_CHECK_TYPE(flat.is_floating_point(), "ReduceOp.PREMUL_SUM needs floats, not ",
                       flat.scalar_type());
      op = c10d::ReduceOp::SUM;
      return flat.mul(supplement->tensor_factor.to(flat.options(), /*non_blocking=*/true));
    }
  }
  // Any tensor of the type will do for the check.
  const at::Tensor like = at::empty({0}, at::TensorOptions().dtype(flat.scalar_type()));
  reductionOf(asReal(like, op), op);
  return flat;
}

}  // namespace topoopt
