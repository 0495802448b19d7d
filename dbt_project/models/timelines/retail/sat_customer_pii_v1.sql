{#- Written by `lakehouse scaffold`, its own while unchanged: 5909f1a47d2c97f9 -#}
{{ timeline(
  source_model='sat_customer_pii',
  src_pk='hk_customer',
  src_hashdiff='hd_customer_pii',
  src_payload=['first_name', 'last_name', 'email'],
) }}
