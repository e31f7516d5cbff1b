// Prints the table of ops, in Markdown, from their records.

#include <tandem/tandem.h>
#include <cstdio>

#include "../engine/op_record.h"

int main() {
  std::printf("| op | what it computes | differentiable | in PyTorch |\n|---|---|---|---|\n");
  for (const tandem::OpRecord& r : tandem::op_records()) {
    std::printf("| `%s` | %s | %s | `%s` |\n", r.name, r.text, r.differentiable ? "twice" : "no",
                r.samples().front().python.c_str());
  }
}
