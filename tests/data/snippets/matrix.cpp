#include "matrix.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

namespace linear {
namespace {

constexpr int kMax = 1'000'000;

template <typename T>
T clamp(T value, T low, T high) {
  return std::max(low, std::min(value, high));
}

}  // namespace

template <typename T>
class Matrix {
 public:
  Matrix(int rows, int columns) : rows_(rows), columns_(columns), values_(rows * columns) {
    if (rows * columns > kMax) {
      throw std::length_error("too large: " + std::to_string(rows) + " x " + std::to_string(columns));
    }
  }

  T& at(int row, int column) { return values_[row * columns_ + column]; }

  std::vector<std::vector<T>> rows() const {
    std::vector<std::vector<T>> found;
    for (int row = 0; row < rows_; ++row) {
      found.emplace_back(values_.begin() + row * columns_, values_.begin() + (row + 1) * columns_);
    }
    return found;
  }

 private:
  int rows_;
  int columns_;
  std::vector<T> values_;
};

Matrix<double> identity(int size) {
  Matrix<double> found(size, size);
  for (int at = 0; at < size; ++at) {
    found.at(at, at) = 1.0;
  }
  return found;
}

}  // namespace linear
