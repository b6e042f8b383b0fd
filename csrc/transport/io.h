#pragma once

namespace topoopt {

// What came of moving bytes.
enum class Io {
  kMore,     // some bytes moved, and more may at once
  kBlocked,  // no more for now: Link::becameReadable() or becameWritable() will follow
  kEnded,    // reading: the other end has ended its side. Writing: it is gone
  kBroken,   // there is an error, which has a text
};

}  // namespace topoopt
