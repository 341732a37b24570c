# nvcc, wherever there is a toolkit and the build is not sanitized or fuzzed: included at the top, since CMake wants a
# language enabled above everything that is linked with it. Sets CAIRN_HAS_NVCC.
set(CAIRN_HAS_NVCC OFF)
if(CAIRN_SANITIZE OR CAIRN_FUZZ)
  return()
endif()
if(NOT CUDAToolkit_FOUND OR NOT CUDAToolkit_NVCC_EXECUTABLE)
  message(STATUS "CUDA backend: left out, since there is no CUDA toolkit")
  return()
endif()
set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)  # and the last one's PTX, for devices to come
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
if(CMAKE_VERSION VERSION_LESS 3.26)  # which does not know that nvcc compiles C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
  set(CMAKE_CUDA20_COMPILE_FEATURES cuda_std_20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CAIRN_HAS_NVCC ON)
