// SPDX-License-Identifier: Apache-2.0
// What namer_test.cc names: one function inlined into another, in a namespace.
#include <cstdio>
#include <cstdlib>

namespace shop {

__attribute__((always_inline)) inline int Discount(int price) {
  for (volatile int i = 0; i < price;) {
    i = i + 3;
    price ^= i;  // DISCOUNT
  }
  return price;
}

__attribute__((noinline)) int Checkout(int price) {
  int sum = Discount(price);  // CHECKOUT
  asm volatile("" : "+r"(sum));
  return sum + 1;
}

}  // namespace shop

int main(int argc, char**) { return shop::Checkout(argc) == 7777777; }
