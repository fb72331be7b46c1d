# What a program that uses libkwkclient needs: library, headers, pkg-config file, CMake package.
# `cmake --install build --component client` installs this part alone.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/kwkclient)
cmake_path(ABSOLUTE_PATH CMAKE_INSTALL_LIBDIR BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}
  OUTPUT_VARIABLE KWK_PC_LIBDIR)
cmake_path(ABSOLUTE_PATH CMAKE_INSTALL_INCLUDEDIR BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}
  OUTPUT_VARIABLE KWK_PC_INCLUDEDIR)
get_filename_component(KWK_MSGPACK_NAME ${KWK_MSGPACK} NAME_WE)
string(REGEX REPLACE "^lib" "" KWK_MSGPACK_NAME ${KWK_MSGPACK_NAME})
configure_file(kwkclient.pc.in kwkclient.pc @ONLY)
configure_package_config_file(kwkclientConfig.cmake.in kwkclientConfig.cmake
  INSTALL_DESTINATION ${package})
write_basic_package_version_file(kwkclientConfigVersion.cmake COMPATIBILITY SameMajorVersion)

target_include_directories(kwkclient INTERFACE
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/kwker>)
install(TARGETS kwkclient EXPORT kwkclientTargets COMPONENT client)
install(TARGETS kwkclient_static kwkctl COMPONENT client)
install(FILES kwkclient.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kwker COMPONENT client)
install(FILES ${CMAKE_SOURCE_DIR}/proto/error.h ${CMAKE_SOURCE_DIR}/proto/errors.inc
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kwker/proto COMPONENT client)
install(EXPORT kwkclientTargets NAMESPACE kwkclient:: DESTINATION ${package} COMPONENT client)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kwkclientConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/kwkclientConfigVersion.cmake
  DESTINATION ${package} COMPONENT client)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kwkclient.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT client)
