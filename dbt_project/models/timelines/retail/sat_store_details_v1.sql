{#- Written by `lakehouse scaffold`, its own while unchanged: cac4da364c174e17 -#}
{{ timeline(
  source_model='sat_store_details',
  src_pk='hk_store',
  src_hashdiff='hd_store_details',
  src_payload=['store_name', 'city', 'state', 'opened_at'],
) }}
