# One object library per instruction set, each with its own flags, and the list that the dispatch reads.
# To add one: kernels/isa/<name>.cpp, and a line here if the name is new. Lines are ordered from slowest to best; a name
# whose unit does not exist (yet) is a free slot.
set(POWERINFER_ISAS "")
macro(powerinfer_isa name table processors)
  list(APPEND POWERINFER_ISAS ${name})
  set(POWERINFER_ISA_${name}_TABLE ${table})
  set(POWERINFER_ISA_${name}_PROCESSORS "${processors}")
  set(POWERINFER_ISA_${name}_FLAGS ${ARGN})
endmacro()

set(x86 "^(x86_64|AMD64|amd64|x64)$")
powerinfer_isa(scalar kScalarTable ".*")
powerinfer_isa(neon kNeonTable "^(aarch64|arm64|ARM64)$")
powerinfer_isa(avx2 kAvx2Table "${x86}" -mavx2 -mfma -mf16c)
powerinfer_isa(avx512 kAvx512Table "${x86}" -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl)
powerinfer_isa(avx512_vnni kAvx512VnniTable "${x86}"
  -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni)

# Adds the instruction sets of the target processor to `target`.
function(powerinfer_add_isas target)
  set(kernels_dir "${PROJECT_SOURCE_DIR}/src/cpp/kernels")
  set(declarations "")
  set(entries "")
  set(libraries "")
  foreach(name IN LISTS POWERINFER_ISAS)
    set(unit "${kernels_dir}/isa/${name}.cpp")
    if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "${POWERINFER_ISA_${name}_PROCESSORS}" OR NOT EXISTS "${unit}")
      continue()
    endif()
    set(library powerinfer_isa_${name})
    add_library(${library} OBJECT "${unit}")
    target_include_directories(${library} PRIVATE "${PROJECT_SOURCE_DIR}/src/cpp")
    target_compile_features(${library} PRIVATE cxx_std_20)
    target_compile_options(${library} PRIVATE ${POWERINFER_ISA_${name}_FLAGS})
    if(NOT MSVC)
      # Kernels throw nothing; without exception tables no weak symbol of the C++ run time is left either. The
      # kernels' small arrays only become registers with the loops unrolled.
      target_compile_options(${library} PRIVATE -fno-exceptions $<$<NOT:$<CONFIG:Debug>>:-O3>)
    endif()
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # GCC would take the loads of a block for a memcpy, and registers for memory with it.
      target_compile_options(${library} PRIVATE -fno-tree-loop-distribute-patterns)
    endif()
    if(MINGW AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # Windows aligns stacks to 16 bytes, GCC spills vectors as if to 32 (its bug 54412).
      target_compile_options(${library} PRIVATE -Wa,-muse-unaligned-vector-move)
    endif()
    target_link_libraries(${library} PRIVATE powerinfer_compile_options)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${library}>)
    set(table ${POWERINFER_ISA_${name}_TABLE})
    string(APPEND declarations "extern const KernelTable ${table};\n")
    string(APPEND entries "    {&${table}, cpu_runs_${name}},\n")
    list(APPEND libraries ${library})
  endforeach()

  set(POWERINFER_ISA_DECLARATIONS "${declarations}")
  set(POWERINFER_ISA_ENTRIES "${entries}")
  configure_file("${PROJECT_SOURCE_DIR}/cmake/isa_list.cpp.in" "${PROJECT_BINARY_DIR}/isa_list.cpp" @ONLY)
  target_sources(${target} PRIVATE "${PROJECT_BINARY_DIR}/isa_list.cpp")

  # Of the cpu_features_* files one is linked.
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "${x86}")
    set(unused generic)
  else()
    set(unused x86)
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources EXCLUDE REGEX "/cpu_features_${unused}\\.cpp$")
  set_target_properties(${target} PROPERTIES SOURCES "${sources}")

  # The units keep everything but their table to themselves.
  if(POWERINFER_BUILD_TESTS AND CMAKE_NM)
    foreach(library IN LISTS libraries)
      add_test(NAME ${library}_symbols
        COMMAND "${CMAKE_COMMAND}" "-DNM=${CMAKE_NM}" "-DOBJECTS=$<TARGET_OBJECTS:${library}>"
        -P "${PROJECT_SOURCE_DIR}/cmake/check_isa_symbols.cmake")
    endforeach()
  endif()
endfunction()
