# cmake -DFILES="a;b;…" -DOUT=header -P pack_id.cmake
# A number that changes when a source that defines packed bytes changes: the hash of all of them.
set(sums "")
foreach(file ${FILES})
  file(SHA256 ${file} sum)
  string(APPEND sums "${sum}")
endforeach()
string(SHA256 sum "${sums}")
string(SUBSTRING "${sum}" 0 32 sum)
string(REGEX REPLACE "(..)" "0x\\1, " bytes "${sum}")
file(WRITE ${OUT} "#define KWK_PACK_BUILD_ID ${bytes}\n")
