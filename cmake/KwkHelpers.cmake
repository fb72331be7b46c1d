# Small helpers, so that each folder's CMakeLists.txt is a list of names.

# kwk_isa(arch "flags" files…): compile these files of the current folder with ISA flags, or leave
# them out on another architecture. Sets KWK_ISA_SOURCES for the caller to add to its library.
function(kwk_isa arch flags)
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL arch)
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "${flags}")
    set(KWK_ISA_SOURCES ${KWK_ISA_SOURCES} ${ARGN} PARENT_SCOPE)
  endif()
endfunction()

# kwk_test(folder name libraries…): tests/<folder>/test_<name>.c as the ctest <folder>/<name>.
function(kwk_test folder name)
  set(target test_${folder}_${name})
  add_executable(${target} ${CMAKE_SOURCE_DIR}/tests/${folder}/test_${name}.c)
  target_link_libraries(${target} PRIVATE ${ARGN} cmocka m Threads::Threads)
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${folder}/${name} COMMAND ${target})
  set_tests_properties(${folder}/${name} PROPERTIES
    TIMEOUT 240 ENVIRONMENT "KWK_SOURCE_DIR=${CMAKE_SOURCE_DIR};KWK_BIN_DIR=${CMAKE_BINARY_DIR}/bin;LSAN_OPTIONS=print_suppressions=0:suppressions=${CMAKE_SOURCE_DIR}/tests/lsan.supp")
endfunction()
