# Options of every target of this project. FMA contraction is off: FMA is used as an intrinsic, on purpose.
add_library(powerinfer_compile_options INTERFACE)
if(MSVC)
  target_compile_options(powerinfer_compile_options INTERFACE /W4 /fp:precise)
else()
  target_compile_options(powerinfer_compile_options INTERFACE -ffp-contract=off
    $<BUILD_INTERFACE:-Wall> $<BUILD_INTERFACE:-Wextra> $<BUILD_INTERFACE:-Wshadow> $<BUILD_INTERFACE:-Wconversion>
    $<BUILD_INTERFACE:-Wno-sign-conversion>)
  if(POWERINFER_WERROR)
    target_compile_options(powerinfer_compile_options INTERFACE $<BUILD_INTERFACE:-Werror>)
  endif()
  if(POWERINFER_NATIVE)
    target_compile_options(powerinfer_compile_options INTERFACE -march=native)
  endif()
endif()
