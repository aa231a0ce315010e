// libsnug_c.so is made of the static libraries; CMake wants one source of its own.
