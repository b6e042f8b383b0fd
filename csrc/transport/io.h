#pragma once

namespace topoopt {

// The result of moving bytes.
enum class Io {
  kMore,     // some bytes moved, and more may move at once
  kBlocked,  // until Link::becameReadable() or becameWritable()
  kEnded,    // reading: the other end has ended its side; writing: it is gone
  kBroken,   // an error, which has a text
};

}  // namespace topoopt
