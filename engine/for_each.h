#pragma once
// TANDEM_FOR_EACH: the preprocessor's loop, for macros that list fields.

/// Expands to m(context, a) for each argument after `context`, of which there may be none, and at most 80.
#define TANDEM_FOR_EACH(m, context, ...) __VA_OPT__(TANDEM_EXPAND(TANDEM_FOR_EACH_STEP(m, context, __VA_ARGS__)))

// A macro does not expand inside itself; naming the step indirectly leaves its expansion to the next rescan, and
// TANDEM_EXPAND rescans 85 times.
#define TANDEM_FOR_EACH_STEP(m, context, a, ...) \
  m(context, a) __VA_OPT__(TANDEM_FOR_EACH_AGAIN TANDEM_PARENS(m, context, __VA_ARGS__))
#define TANDEM_FOR_EACH_AGAIN() TANDEM_FOR_EACH_STEP
#define TANDEM_PARENS ()
#define TANDEM_EXPAND(...) TANDEM_EXPAND_21(TANDEM_EXPAND_21(TANDEM_EXPAND_21(TANDEM_EXPAND_21(__VA_ARGS__))))
#define TANDEM_EXPAND_21(...) TANDEM_EXPAND_5(TANDEM_EXPAND_5(TANDEM_EXPAND_5(TANDEM_EXPAND_5(__VA_ARGS__))))
#define TANDEM_EXPAND_5(...) TANDEM_EXPAND_1(TANDEM_EXPAND_1(TANDEM_EXPAND_1(TANDEM_EXPAND_1(__VA_ARGS__))))
#define TANDEM_EXPAND_1(...) __VA_ARGS__
