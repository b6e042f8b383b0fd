// The MPI side of benchmarks/collectives.py: mpi_collectives FOLDER
//
// Every rank waits for commands at FOLDER/commands-RANK, in a read that burns no CPU, and rank 0
// answers in FOLDER/answers. A command is one line:
//
//   check|time|renew operation datatype reduce_op root target elements warm_up iterations
//
// "check" runs the operation once on fresh buffers and answers the number of wrong elements; "time"
// runs it warm_up times, then `iterations` times after a barrier, and answers the seconds of one
// iteration on the slowest rank. "renew" does the same with buffers that are written before each
// iteration, which is not counted. Buffers hold what torch_topoopt/tools/bench/operations.py says.

#define _GNU_SOURCE
#include <mpi.h>
#include <stdint.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  char verb[16];
  char operation[24];
  char datatype[16];
  char reduce_op[16];
  int root;
  int target;
  long elements;  // of the whole buffer
  int warm_up;
  int iterations;
} Command;

typedef struct {
  char* input;
  char* output;
  long in_count;
  long out_count;
} Buffers;

static const double kUntouched = 9;  // no rank sends it, so what was not written counts as wrong
static int rank, ranks;

static void die(const char* what) {
  fprintf(stderr, "mpi_collectives: rank %d: %s\n", rank, what);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static MPI_Datatype datatypeOf(const char* name) {
  if (!strcmp(name, "int8")) return MPI_INT8_T;
  if (!strcmp(name, "uint8")) return MPI_UINT8_T;
  if (!strcmp(name, "int32")) return MPI_INT32_T;
  if (!strcmp(name, "int64")) return MPI_INT64_T;
  if (!strcmp(name, "float")) return MPI_FLOAT;
  if (!strcmp(name, "double")) return MPI_DOUBLE;
  die("unknown datatype");
  return MPI_DATATYPE_NULL;
}

static MPI_Op reduceOpOf(const char* name) {
  if (!strcmp(name, "sum")) return MPI_SUM;
  if (!strcmp(name, "prod")) return MPI_PROD;
  if (!strcmp(name, "min")) return MPI_MIN;
  if (!strcmp(name, "max")) return MPI_MAX;
  die("unknown reduce op");
  return MPI_OP_NULL;
}

static void store(char* buffer, long i, const char* datatype, double value) {
  if (!strcmp(datatype, "int8")) ((int8_t*)buffer)[i] = (int8_t)value;
  else if (!strcmp(datatype, "uint8")) ((uint8_t*)buffer)[i] = (uint8_t)value;
  else if (!strcmp(datatype, "int32")) ((int32_t*)buffer)[i] = (int32_t)value;
  else if (!strcmp(datatype, "int64")) ((int64_t*)buffer)[i] = (int64_t)value;
  else if (!strcmp(datatype, "float")) ((float*)buffer)[i] = (float)value;
  else ((double*)buffer)[i] = value;
}

static double load(const char* buffer, long i, const char* datatype) {
  if (!strcmp(datatype, "int8")) return ((const int8_t*)buffer)[i];
  if (!strcmp(datatype, "uint8")) return ((const uint8_t*)buffer)[i];
  if (!strcmp(datatype, "int32")) return ((const int32_t*)buffer)[i];
  if (!strcmp(datatype, "int64")) return (double)((const int64_t*)buffer)[i];
  if (!strcmp(datatype, "float")) return ((const float*)buffer)[i];
  return ((const double*)buffer)[i];
}

static int is(const Command* command, const char* operation) {
  return !strcmp(command->operation, operation);
}

// What such an operation sends, too, is in the output.
static int inPlace(const Command* command) {
  return is(command, "all_reduce") || is(command, "reduce") || is(command, "broadcast");
}

static double pattern(const Command* command, int of_rank, long i) {
  const int multiplied =
      !strcmp(command->reduce_op, "prod") &&
      (is(command, "all_reduce") || is(command, "reduce") || is(command, "reduce_scatter"));
  return multiplied ? 1 + (of_rank + i) % 2 : (of_rank + i) % 7;
}

static double reduced(const Command* command, long i) {
  double result = pattern(command, 0, i);
  for (int r = 1; r < ranks; ++r) {
    const double other = pattern(command, r, i);
    if (!strcmp(command->reduce_op, "sum")) result += other;
    if (!strcmp(command->reduce_op, "prod")) result *= other;
    if (!strcmp(command->reduce_op, "min") && other < result) result = other;
    if (!strcmp(command->reduce_op, "max") && other > result) result = other;
  }
  return result;
}

// The value that the first call must leave at element i of this rank's output; -1: any.
static double expected(const Command* command, long i) {
  const long part = command->elements / ranks;
  if (is(command, "all_reduce")) return reduced(command, i);
  if (is(command, "reduce")) return rank == command->root ? reduced(command, i) : -1;
  if (is(command, "reduce_scatter")) return reduced(command, rank * part + i);
  if (is(command, "broadcast")) return pattern(command, command->root, i);
  if (is(command, "all_gather")) return pattern(command, (int)(i / part), i % part);
  if (is(command, "all_to_all")) return pattern(command, (int)(i / part), rank * part + i % part);
  if (is(command, "sendrecv") && rank == command->target) return pattern(command, command->root, i);
  return -1;
}

static Buffers allocate(const Command* command) {
  int bytes;
  MPI_Type_size(datatypeOf(command->datatype), &bytes);
  Buffers buffers = {NULL, NULL, command->elements, command->elements};
  if (is(command, "all_gather")) buffers.in_count /= ranks;
  if (is(command, "reduce_scatter")) buffers.out_count /= ranks;
  buffers.input = malloc((size_t)buffers.in_count * bytes + 1);
  buffers.output = malloc((size_t)buffers.out_count * bytes + 1);
  if (!buffers.input || !buffers.output) die("out of memory");
  for (long i = 0; i < buffers.in_count; ++i)
    store(buffers.input, i, command->datatype, pattern(command, rank, i));
  for (long i = 0; i < buffers.out_count; ++i)
    store(buffers.output, i, command->datatype, kUntouched);
  if (inPlace(command))
    memcpy(buffers.output, buffers.input, (size_t)buffers.out_count * bytes);
  return buffers;
}

static void call(const Command* command, const Buffers* buffers) {
  const MPI_Datatype type = datatypeOf(command->datatype);
  const int count = (int)command->elements, part = count / ranks, root = command->root;
  if (is(command, "all_reduce")) {
    MPI_Allreduce(MPI_IN_PLACE, buffers->output, count, type, reduceOpOf(command->reduce_op),
                  MPI_COMM_WORLD);
  } else if (is(command, "all_gather")) {
    MPI_Allgather(buffers->input, part, type, buffers->output, part, type, MPI_COMM_WORLD);
  } else if (is(command, "reduce_scatter")) {
    MPI_Reduce_scatter_block(buffers->input, buffers->output, part, type,
                             reduceOpOf(command->reduce_op), MPI_COMM_WORLD);
  } else if (is(command, "broadcast")) {
    MPI_Bcast(buffers->output, count, type, root, MPI_COMM_WORLD);
  } else if (is(command, "reduce")) {
    const void* from = rank == root ? MPI_IN_PLACE : buffers->output;
    MPI_Reduce(from, buffers->output, count, type, reduceOpOf(command->reduce_op), root,
               MPI_COMM_WORLD);
  } else if (is(command, "all_to_all")) {
    MPI_Alltoall(buffers->input, part, type, buffers->output, part, type, MPI_COMM_WORLD);
  } else if (is(command, "sendrecv")) {
    if (rank == root) MPI_Send(buffers->input, count, type, command->target, 0, MPI_COMM_WORLD);
    if (rank == command->target)
      MPI_Recv(buffers->output, count, type, root, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  } else if (is(command, "barrier")) {
    MPI_Barrier(MPI_COMM_WORLD);
  } else {
    die("unknown operation");
  }
}

static double check(const Command* command) {
  Buffers buffers = allocate(command);
  call(command, &buffers);
  long wrong = 0, total = 0;
  for (long i = 0; i < buffers.out_count; ++i) {
    const double want = expected(command, i);
    wrong += want >= 0 && load(buffers.output, i, command->datatype) != want;
  }
  MPI_Reduce(&wrong, &total, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  free(buffers.input);
  free(buffers.output);
  return (double)total;
}

// Writes what the next call sends.
static void renew(const Command* command, const Buffers* buffers) {
  if (is(command, "sendrecv") && rank != command->root) return;
  int bytes;
  MPI_Type_size(datatypeOf(command->datatype), &bytes);
  if (inPlace(command)) {
    memset(buffers->output, 1, (size_t)buffers->out_count * bytes);
  } else {
    memset(buffers->input, 1, (size_t)buffers->in_count * bytes);
  }
}

static double secondsOf(const Command* command, const Buffers* buffers, int renews, int calls) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double started = MPI_Wtime();
  for (int i = 0; i < command->iterations; ++i) {
    if (renews) renew(command, buffers);
    if (calls) call(command, buffers);
  }
  return (MPI_Wtime() - started) / command->iterations;
}

static double timed(const Command* command) {
  Buffers buffers = allocate(command);
  for (int i = 0; i < command->warm_up; ++i) call(command, &buffers);
  const int renews = !strcmp(command->verb, "renew");
  double seconds = secondsOf(command, &buffers, renews, 1);
  if (renews) seconds -= secondsOf(command, &buffers, 1, 0);
  if (seconds < 1e-9) seconds = 1e-9;
  double slowest = 0;
  MPI_Reduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  free(buffers.input);
  free(buffers.output);
  return slowest;
}

static FILE* openIn(const char* folder, const char* name, const char* mode) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE* file = fopen(path, mode);
  if (!file) die("cannot open the command or answer pipe");
  return file;
}

static void runOn(int processor) {
  cpu_set_t chosen;
  CPU_ZERO(&chosen);
  CPU_SET(processor, &chosen);
  if (sched_setaffinity(0, sizeof chosen, &chosen) != 0) die("no such processor");
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc < 2) die("usage: mpi_collectives FOLDER [PROCESSOR ...]");
  if (argc > 2) runOn(atoi(argv[2 + rank % (argc - 2)]));
  char name[64];
  snprintf(name, sizeof name, "commands-%d", rank);
  FILE* commands = openIn(argv[1], name, "r");
  FILE* answers = rank == 0 ? openIn(argv[1], "answers", "w") : NULL;
  char line[256];
  while (fgets(line, sizeof line, commands)) {
    Command command;
    const int fields =
        sscanf(line, "%15s %23s %15s %15s %d %d %ld %d %d", command.verb, command.operation,
               command.datatype, command.reduce_op, &command.root, &command.target,
               &command.elements, &command.warm_up, &command.iterations);
    if (fields != 9) die("a command with other than nine fields");
    const double answer = strcmp(command.verb, "check") ? timed(&command) : check(&command);
    if (answers) {
      fprintf(answers, "%.9g\n", answer);
      fflush(answers);
    }
  }
  MPI_Finalize();
  return 0;
}
