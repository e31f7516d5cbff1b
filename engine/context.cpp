#include "context.h"

namespace tandem {

Context& context() {
  thread_local constinit Context current;
  return current;
}

}  // namespace tandem
