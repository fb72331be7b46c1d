# Every header compiles alone, as C; the public ones as C++ too (client/test_install.sh).
# Of kernels/ only the contract: the others are templates, or need the ISA flags of their sources.
file(GLOB headers RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS
  ${CMAKE_SOURCE_DIR}/proto/*.h ${CMAKE_SOURCE_DIR}/client/*.h ${CMAKE_SOURCE_DIR}/engine/*.h
  ${CMAKE_SOURCE_DIR}/daemon/*.h ${CMAKE_SOURCE_DIR}/kernels/kernels.h)
set(sources)
foreach(header ${headers})
  string(MAKE_C_IDENTIFIER ${header} name)
  set(source ${CMAKE_BINARY_DIR}/headers/${name}.c)
  file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${header}\"\n" @ONLY)
  list(APPEND sources ${source})
endforeach()
add_library(kwk_headers OBJECT ${sources})
