// main() of every test program.

#define CATCH_CONFIG_RUNNER
#include "catch.h"

int main(int argc, char** argv) {
  Catch::Session session;
#if CATCH_VERSION_MAJOR >= 3
  session.configData().allowZeroTests = true;  // as in version 2: a filter need not match in every program
#endif
  return session.run(argc, argv);
}
